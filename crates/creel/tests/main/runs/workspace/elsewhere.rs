//! The same in containers and in the cloud: real git in the sandbox, a real server outside.

use creel_model::provider::ProviderName;
use creel_testkit::git::GitServer;
use creel_testkit::image;
use serde_json::Value;

use crate::runs::stage::{Stage, agent};

use super::repositories::repository;

const TOKEN: &str = "pT5hW8cJ3yN6rV1xK9bM2gQ7";
const CREDENTIAL: &str = "[credentials.git]\ntoken = \"${env:GIT_TOKEN}\"\n";
/// An agent that says where its repository stands, what git is set to, and what it was given.
const LOOK_AROUND: &str = "git -C app rev-parse HEAD; cat app/.git/config; env";

/// Sets up a world in whose sandboxes git runs, and a server that is reached from there.
fn stage_with_git(world: ProviderName) -> (Stage, GitServer) {
    let mut stage = Stage::set(world);
    stage.home.creel = stage.home.creel.clone().env("GIT_TOKEN", TOKEN);
    let git = match &stage.engine {
        Some(engine) => {
            image::import_with_git(&engine.api()).unwrap();
            stage.sandbox = format!("image = \"{}\"\nnetwork = \"host\"\n", image::WITH_GIT);
            GitServer::start_beside(engine)
        }
        None => GitServer::start(),
    };
    (stage, git.unwrap())
}

/// Returns what a run said, its events too, as text.
fn all_of(stage: &Stage, report: &Value) -> String {
    let run = report["run"].as_str().unwrap();
    let events = stage.home.creel.run(["events", run, "--json"]).expect_code(0).stdout;
    format!("{report}{events}")
}

fn private_repository_in(world: ProviderName) {
    let (stage, git) = stage_with_git(world);
    let origin = git.add("app").unwrap();
    git.admit(TOKEN);
    let wanted = repository(&git.url("app"), "app", "credential = \"git\"\nref = \"side\"");
    let report = stage.run(0, &format!("{wanted}{CREDENTIAL}{}", agent(LOOK_AROUND)));
    let said = all_of(&stage, &report);
    assert!(said.contains(&format!("{}\\n", origin.side)), "{said}");
    assert!(git.asked().iter().any(|asked| asked.authorization.is_some()));
    // Neither the token nor the mask in its place: the agent never saw it.
    assert!(!said.contains(TOKEN) && !said.contains("[masked:credentials.git"), "{said}");
    stage.assert_nothing_left();
}

#[test]
fn a_private_repository_is_cloned_in_a_container_and_leaves_no_login_there() {
    private_repository_in(ProviderName::Docker);
}

#[test]
fn a_private_repository_is_cloned_in_a_cloud_sandbox_and_leaves_no_login_there() {
    private_repository_in(ProviderName::Daytona);
}

fn missing_repository_in(world: ProviderName) {
    let (stage, git) = stage_with_git(world);
    let missing = repository(&git.url("nowhere"), "app", "");
    let report = stage.run(5, &format!("{missing}{}", agent("echo the agent ran")));
    assert_eq!(report["cause"]["class"], "workspace_incomplete", "{report:#}");
    assert!(report["cause"]["message"].as_str().unwrap().contains("not found"), "{report:#}");
    let said = all_of(&stage, &report);
    for never in ["bootstrap_ok", "bridge_started", "turn_started", "the agent ran"] {
        assert!(!said.contains(never), "{never}: {said}");
    }
    stage.assert_nothing_left();
}

#[test]
fn without_its_repository_nothing_starts_in_a_container() {
    missing_repository_in(ProviderName::Docker);
}

#[test]
fn without_its_repository_nothing_starts_in_a_cloud_sandbox() {
    missing_repository_in(ProviderName::Daytona);
}

#[test]
fn a_container_without_git_is_told_so_and_is_not_tried_again() {
    let (stage, git) = (Stage::set(ProviderName::Docker), GitServer::start().unwrap());
    git.add("app").unwrap();
    let wanted = repository(&git.url("app"), "app", "");
    let report = stage.run(5, &format!("{wanted}{}", agent("echo the agent ran")));
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
    stage.assert_nothing_left();
}
