//! Tokens: the right one clones, any other is named as what is wrong.

use creel_testkit::git::{Fault, GitServer};

use crate::runs::scene::{Ended, Scene};

use super::repositories::repository;

const TOKEN: &str = "kZ7mQ2vX9tR4wB6nL1pD8sF3";
const CREDENTIAL: &str = "[credentials.git]\ntoken = \"${env:GIT_TOKEN}\"\n";

/// Returns a server with one repository that wants a password.
fn private(password: &str) -> GitServer {
    let git = GitServer::start().unwrap();
    git.add("app").unwrap();
    git.admit(password);
    git
}

fn run(git: &GitServer, scene: &Scene, more: &str) -> Ended {
    let more = format!("credential = \"git\"\n{more}");
    scene.run(&(repository(&git.url("app"), "app", &more) + CREDENTIAL))
}

#[test]
fn a_token_clones_a_private_repository() {
    let (git, scene) = (private(TOKEN), Scene::new().env("GIT_TOKEN", TOKEN));
    let ended = run(&git, &scene, "");
    scene.assert_succeeded(&ended);
    assert_eq!(ended.step("credential git")["status"], "passed");
    assert!(git.asked().iter().any(|asked| asked.authorization.is_some()));
}

#[test]
fn a_token_that_is_refused_is_named_and_not_tried_again() {
    let (git, scene) = (private("another"), Scene::new().env("GIT_TOKEN", TOKEN));
    let ended = run(&git, &scene, "");
    scene.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert_eq!(ended.tries("clone app"), 1);
    assert!(git.asked().iter().any(|asked| asked.authorization.is_some()), "it was never shown");
}

#[test]
fn a_token_that_is_not_set_is_named_before_anything_is_cloned() {
    let (git, scene) = (private(TOKEN), Scene::new());
    let ended = run(&git, &scene, "");
    scene.assert_stopped(&ended, "credential_unavailable", "credential git");
    assert!(ended.found("credential git").contains("GIT_TOKEN"), "{}", ended.output);
    assert_eq!(git.asked(), []);
}

#[test]
fn a_token_that_only_an_optional_repository_needs_may_be_missing() {
    let (git, scene) = (private(TOKEN), Scene::new());
    let ended = run(&git, &scene, "required = false");
    scene.assert_succeeded(&ended);
    assert_eq!(ended.step("credential git")["status"], "tolerated");
    assert_eq!(ended.step("clone app")["status"], "tolerated");
}

#[test]
fn a_private_repository_without_a_credential_is_a_matter_of_credentials() {
    let (git, scene) = (private(TOKEN), Scene::new());
    let ended = scene.run(&repository(&git.url("app"), "app", ""));
    scene.assert_stopped(&ended, "credential_unavailable", "clone app");
}

#[test]
fn a_login_does_not_follow_a_repository_to_another_host() {
    let (other, git) = (private(TOKEN), private(TOKEN));
    git.trouble("app", Fault::Moved(other.address()), 100);
    let scene = Scene::new().env("GIT_TOKEN", TOKEN);
    let ended = run(&git, &scene, "");
    scene.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert!(!other.asked().is_empty(), "it was never sent there");
    let shown = other.asked().into_iter().filter_map(|asked| asked.authorization);
    let empty = "Basic Og==";
    assert_eq!(shown.filter(|login| login != empty).collect::<Vec<_>>(), Vec::<String>::new());
}
