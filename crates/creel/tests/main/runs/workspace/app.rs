//! GitHub Apps: a signed statement buys a token, and the token clones.

use creel_testkit::git::GitServer;
use creel_testkit::github::{App, Github};

use crate::runs::scene::{Ended, Scene};

use super::repositories::repository;

const TOKEN: &str = "ghs_qW3eR5tY7uI9oP1aS2dF4gH6jK8lZ0xC";

/// An app, whoever knows it, and a repository that takes its token.
struct Stage {
    app: App,
    github: Github,
    git: GitServer,
    scene: Scene,
}

impl Stage {
    fn set() -> Self {
        let app = App::make().unwrap();
        let github = Github::start(&app, TOKEN).unwrap();
        let git = GitServer::start().unwrap();
        git.add("app").unwrap();
        git.admit(TOKEN);
        let scene = Scene::new().env("APP_KEY", &app.private_key);
        Self { app, github, git, scene }
    }

    fn run(&self) -> Ended {
        let credential = format!(
            "[credentials.hub]\napp_id = {}\ninstallation_id = {}\n\
             private_key = \"${{env:APP_KEY}}\"\napi_url = \"{}\"\n",
            self.app.id,
            self.app.installation,
            self.github.url()
        );
        let url = self.git.url("app");
        self.scene.run(&(repository(&url, "app", "credential = \"hub\"") + &credential))
    }
}

#[test]
fn a_minted_token_clones_a_private_repository() {
    let stage = Stage::set();
    let ended = stage.run();
    stage.scene.assert_succeeded(&ended);
    assert_eq!(stage.github.answered(), [201]);
}

#[test]
fn an_app_whose_key_is_not_the_right_one_is_refused() {
    let mut stage = Stage::set();
    let another = App::make().unwrap().private_key;
    stage.scene = stage.scene.env("APP_KEY", &another);
    let ended = stage.run();
    stage.scene.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(stage.github.answered(), [401]);
    assert_eq!(stage.git.asked(), []);
}

#[test]
fn an_app_that_is_not_installed_there_is_refused() {
    let mut stage = Stage::set();
    stage.app.installation += 1;
    let ended = stage.run();
    stage.scene.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(stage.github.answered(), [404]);
}

#[test]
fn a_key_that_is_none_is_told_without_asking_anybody() {
    let mut stage = Stage::set();
    stage.scene = stage.scene.env("APP_KEY", "not a key");
    let ended = stage.run();
    stage.scene.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(stage.github.answered(), Vec::<u16>::new());
}

#[test]
fn a_server_that_fails_once_is_asked_again() {
    let stage = Stage::set();
    stage.github.refuse_once(500);
    let ended = stage.run();
    stage.scene.assert_succeeded(&ended);
    assert_eq!(stage.github.answered(), [500, 201]);
    assert_eq!(ended.tries("credential hub"), 2);
}

#[test]
fn a_server_that_keeps_on_failing_makes_a_cause_that_another_attempt_may_pass() {
    let stage = Stage::set();
    (0..3).for_each(|_| stage.github.refuse_once(503));
    let ended = stage.run();
    stage.scene.assert_stopped(&ended, "credential_unavailable", "credential hub");
    assert_eq!(stage.github.answered(), [503, 503, 503]);
    assert_eq!(ended.report["cause"]["retryable"], true);
}
