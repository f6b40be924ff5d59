//! GitHub Apps: a signed JWT is exchanged for a token, and the token clones.

use creel_testkit::git::GitServer;
use creel_testkit::github::{App, Github};

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};

use super::repositories::repository;

const TOKEN: &str = "ghs_qW3eR5tY7uI9oP1aS2dF4gH6jK8lZ0xC";

/// An app, a GitHub that knows it, and a repository that accepts its token.
struct AppFixture {
    app: App,
    github: Github,
    git: GitServer,
    workflow: WorkflowFixture,
}

impl AppFixture {
    fn set() -> Self {
        let app = App::make().unwrap();
        let github = Github::start(&app, TOKEN).unwrap();
        let git = GitServer::start().unwrap();
        git.add("app").unwrap();
        git.admit(TOKEN);
        let workflow = WorkflowFixture::new().env("APP_KEY", &app.private_key);
        Self { app, github, git, workflow }
    }

    fn run(&self) -> FinishedRun {
        let credential = format!(
            "[credentials.hub]\napp_id = {}\ninstallation_id = {}\n\
             private_key = \"${{env:APP_KEY}}\"\napi_url = \"{}\"\n",
            self.app.id,
            self.app.installation,
            self.github.url()
        );
        let url = self.git.url("app");
        self.workflow.run(&(repository(&url, "app", "credential = \"hub\"") + &credential))
    }
}

#[test]
fn a_minted_token_clones_a_private_repository() {
    let fixture = AppFixture::set();
    let ended = fixture.run();
    fixture.workflow.assert_succeeded(&ended);
    assert_eq!(fixture.github.statuses(), [201]);
}

#[test]
fn an_app_with_a_wrong_key_is_refused() {
    let mut fixture = AppFixture::set();
    let another = App::make().unwrap().private_key;
    fixture.workflow = fixture.workflow.env("APP_KEY", &another);
    let ended = fixture.run();
    fixture.workflow.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(fixture.github.statuses(), [401]);
    assert_eq!(fixture.git.requests(), []);
}

#[test]
fn an_app_that_is_not_installed_there_is_refused() {
    let mut fixture = AppFixture::set();
    fixture.app.installation += 1;
    let ended = fixture.run();
    fixture.workflow.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(fixture.github.statuses(), [404]);
}

#[test]
fn an_invalid_app_key_is_reported_without_a_request() {
    let mut fixture = AppFixture::set();
    fixture.workflow = fixture.workflow.env("APP_KEY", "not a key");
    let ended = fixture.run();
    fixture.workflow.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(fixture.github.statuses(), Vec::<u16>::new());
}

#[test]
fn a_token_request_is_retried_after_a_failure() {
    let fixture = AppFixture::set();
    fixture.github.refuse_once(500);
    let ended = fixture.run();
    fixture.workflow.assert_succeeded(&ended);
    assert_eq!(fixture.github.statuses(), [500, 201]);
    assert_eq!(ended.tries("credential hub"), 2);
}

#[test]
fn a_server_that_keeps_failing_is_a_retryable_cause() {
    let fixture = AppFixture::set();
    (0..3).for_each(|_| fixture.github.refuse_once(503));
    let ended = fixture.run();
    fixture.workflow.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(fixture.github.statuses(), [503, 503, 503]);
    assert_eq!(ended.report["cause"]["retryable"], true);
}
