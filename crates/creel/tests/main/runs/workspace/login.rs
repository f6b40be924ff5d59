//! Tokens: the right one clones, and any other is reported as the cause.

use creel_testkit::git::{GitFault, GitServer};

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};

use super::repositories::repository;

const TOKEN: &str = "kZ7mQ2vX9tR4wB6nL1pD8sF3";
const CREDENTIAL: &str = "[credentials.git]\ntoken = \"${env:GIT_TOKEN}\"\n";

/// Returns a server with one repository that requires a password.
fn private(password: &str) -> GitServer {
    let git = GitServer::start().unwrap();
    git.add("app").unwrap();
    git.admit(password);
    git
}

fn run(git: &GitServer, fixture: &WorkflowFixture, more: &str) -> FinishedRun {
    let more = format!("credential = \"git\"\n{more}");
    fixture.run(&(repository(&git.url("app"), "app", &more) + CREDENTIAL))
}

#[test]
fn a_token_clones_a_private_repository() {
    let (git, fixture) = (private(TOKEN), WorkflowFixture::new().env("GIT_TOKEN", TOKEN));
    let ended = run(&git, &fixture, "");
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.step("credential git")["status"], "passed");
    assert!(git.requests().iter().any(|request| request.authorization.is_some()));
}

#[test]
fn a_refused_token_is_reported_and_not_retried() {
    let (git, fixture) = (private("another"), WorkflowFixture::new().env("GIT_TOKEN", TOKEN));
    let ended = run(&git, &fixture, "");
    fixture.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert_eq!(ended.tries("clone app"), 1);
    assert!(
        git.requests().iter().any(|request| request.authorization.is_some()),
        "it was never shown"
    );
}

#[test]
fn a_missing_token_is_reported_before_anything_is_cloned() {
    let (git, fixture) = (private(TOKEN), WorkflowFixture::new());
    let ended = run(&git, &fixture, "");
    fixture.assert_stopped(&ended, "credential_unavailable", "credential git");
    assert!(ended.found("credential git").contains("GIT_TOKEN"), "{}", ended.output);
    assert_eq!(git.requests(), []);
}

#[test]
fn a_token_that_only_an_optional_repository_needs_may_be_missing() {
    let (git, fixture) = (private(TOKEN), WorkflowFixture::new());
    let ended = run(&git, &fixture, "required = false");
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.step("credential git")["status"], "tolerated");
    assert_eq!(ended.step("clone app")["status"], "tolerated");
}

#[test]
fn a_private_repository_without_a_credential_is_a_credential_error() {
    let (git, fixture) = (private(TOKEN), WorkflowFixture::new());
    let ended = fixture.run(&repository(&git.url("app"), "app", ""));
    fixture.assert_stopped(&ended, "credential_unavailable", "clone app");
}

#[test]
fn a_login_does_not_follow_a_repository_to_another_host() {
    let (other, git) = (private(TOKEN), private(TOKEN));
    git.arm("app", GitFault::Moved(other.address()), 100);
    let fixture = WorkflowFixture::new().env("GIT_TOKEN", TOKEN);
    let ended = run(&git, &fixture, "");
    fixture.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert!(!other.requests().is_empty(), "it was never sent there");
    let shown = other.requests().into_iter().filter_map(|request| request.authorization);
    let empty = "Basic Og==";
    assert_eq!(shown.filter(|login| login != empty).collect::<Vec<_>>(), Vec::<String>::new());
}
