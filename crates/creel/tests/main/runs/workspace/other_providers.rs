//! The same in containers and in the cloud: real git in the sandbox, a real server outside.

use creel_model::provider::ProviderName;
use creel_testkit::git::GitServer;
use creel_testkit::image;
use serde_json::Value;

use crate::runs::run_fixture::{RunFixture, agent};

use super::repositories::repository;

const TOKEN: &str = "pT5hW8cJ3yN6rV1xK9bM2gQ7";
const CREDENTIAL: &str = "[credentials.git]\ntoken = \"${env:GIT_TOKEN}\"\n";
/// An agent that prints the commit of its repository, git's configuration, and its environment.
const PRINT_STATE: &str = "git -C app rev-parse HEAD; cat app/.git/config; env";

/// Sets up a provider with git in its sandboxes, and a git server that they can reach.
fn fixture_with_git(provider: ProviderName) -> (RunFixture, GitServer) {
    let mut fixture = RunFixture::set(provider);
    fixture.home.creel = fixture.home.creel.clone().env("GIT_TOKEN", TOKEN);
    let git = match &fixture.engine {
        Some(engine) => {
            image::import_with_git(&engine.api()).unwrap();
            fixture.sandbox = format!("image = \"{}\"\nnetwork = \"host\"\n", image::WITH_GIT);
            GitServer::start_beside(engine)
        }
        None => GitServer::start(),
    };
    (fixture, git.unwrap())
}

/// Returns the report and the events of a run as text.
fn all_of(fixture: &RunFixture, report: &Value) -> String {
    let run = report["run"].as_str().unwrap();
    let events = fixture.home.creel.run(["events", run, "--json"]).expect_code(0).stdout;
    format!("{report}{events}")
}

fn private_repository_in(provider: ProviderName) {
    let (fixture, git) = fixture_with_git(provider);
    let origin = git.add("app").unwrap();
    git.admit(TOKEN);
    let wanted = repository(&git.url("app"), "app", "credential = \"git\"\nref = \"side\"");
    let report = fixture.run(0, &format!("{wanted}{CREDENTIAL}{}", agent(PRINT_STATE)));
    let output = all_of(&fixture, &report);
    assert!(output.contains(&format!("{}\\n", origin.side)), "{output}");
    assert!(git.requests().iter().any(|request| request.authorization.is_some()));
    // Neither the token nor its mask: the agent never saw it.
    assert!(!output.contains(TOKEN) && !output.contains("[masked:credentials.git"), "{output}");
    fixture.assert_nothing_left();
}

#[test]
fn a_private_repository_is_cloned_in_a_container_and_leaves_no_login_there() {
    private_repository_in(creel_docker::NAME);
}

#[test]
fn a_private_repository_is_cloned_in_a_cloud_sandbox_and_leaves_no_login_there() {
    private_repository_in(creel_daytona::NAME);
}

fn missing_repository_in(provider: ProviderName) {
    let (fixture, git) = fixture_with_git(provider);
    let missing = repository(&git.url("nowhere"), "app", "");
    let report = fixture.run(5, &format!("{missing}{}", agent("echo the agent ran")));
    assert_eq!(report["cause"]["class"], "workspace_incomplete", "{report:#}");
    assert!(report["cause"]["message"].as_str().unwrap().contains("not found"), "{report:#}");
    let output = all_of(&fixture, &report);
    for never in ["bootstrap_ok", "bridge_started", "turn_started", "the agent ran"] {
        assert!(!output.contains(never), "{never}: {output}");
    }
    fixture.assert_nothing_left();
}

#[test]
fn without_its_repository_nothing_starts_in_a_container() {
    missing_repository_in(creel_docker::NAME);
}

#[test]
fn without_its_repository_nothing_starts_in_a_cloud_sandbox() {
    missing_repository_in(creel_daytona::NAME);
}

#[test]
fn a_container_without_git_is_reported_and_not_retried() {
    let (fixture, git) = (RunFixture::set(creel_docker::NAME), GitServer::start().unwrap());
    git.add("app").unwrap();
    let wanted = repository(&git.url("app"), "app", "");
    let report = fixture.run(5, &format!("{wanted}{}", agent("echo the agent ran")));
    let cause = &report["cause"];
    assert_eq!(
        (&cause["class"], &cause["step"]),
        (&"workspace_incomplete".into(), &"clone app".into())
    );
    assert!(
        cause["message"].as_str().unwrap().contains("git does not run in the sandbox"),
        "{cause}"
    );
    let is_clone = |step: &&Value| step["step"] == "clone app";
    let steps = report["checklist"].as_array().unwrap();
    assert_eq!(steps.iter().find(is_clone).unwrap()["tries"], 1, "{report:#}");
    fixture.assert_nothing_left();
}
