//! A repository is there as the workflow wants it, or nothing starts.

use std::fs;

use creel_testkit::git::{Fault, GitServer};
use creel_testkit::wait::eventually;

use crate::runs::scene::Scene;
use crate::support::PATIENCE;

/// Writes a repository of a workflow; `more` are further keys.
pub(super) fn repository(url: &str, path: &str, more: &str) -> String {
    format!("[[workspace.repositories]]\nurl = \"{url}\"\npath = \"{path}\"\n{more}\n")
}

/// Waits until a repository is cloned, while others may still be.
fn await_clone(scene: &Scene, path: &str) {
    let name = format!("clone {path}");
    let is_cloned = || {
        let shown = scene.home.creel.run(["show", "last", "--json"]).expect_code(0).json();
        let steps = shown["checklist"].as_array().cloned().unwrap_or_default();
        steps.iter().any(|step| step["step"] == name.as_str() && step["status"] == "passed")
    };
    assert!(eventually(PATIENCE, is_cloned), "{name} did not pass");
}

/// Keeps the sandbox of a run that fails.
pub(super) const KEEP: &str = "[on_failure]\nkeep = \"5m\"\n";

#[test]
fn a_repository_is_cloned_and_verified_before_anything_starts() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    let origin = git.add("app").unwrap();
    let ended = scene.run(&repository(&git.url("app"), "app", ""));
    scene.assert_succeeded(&ended);
    assert!(ended.text().contains(&origin.main), "{}", ended.text());
    let place = |wanted: &dyn Fn(&serde_json::Value) -> bool| {
        ended.events.iter().position(wanted).expect("it happened")
    };
    let verified =
        place(&|event| event["event"] == "step_ended" && event["step"]["step"] == "verify app");
    let order = ["bootstrap_ok", "bridge_started", "turn_started"]
        .map(|name| place(&|event: &serde_json::Value| event["event"] == name));
    assert!(verified < order[0] && order.is_sorted(), "{:?}", ended.names());
}

#[test]
fn without_a_required_repository_neither_bridge_nor_agent_starts() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    let ended = scene.run(&(repository(&git.url("nowhere"), "app", "") + KEEP));
    ended.assert_cause("workspace_incomplete", "clone app");
    scene.assert_nothing_started(&ended);
    assert!(git.asked().iter().any(|asked| asked.path.starts_with("/nowhere.git")));
    assert!(ended.report["cause"]["message"].as_str().unwrap().contains("not found"));
    let sandbox = scene.sandbox();
    assert!(!sandbox.join(".creel/bridge").exists(), "a bridge was here");
    assert!(!sandbox.join("workspace/work/app").exists());
    scene.give_back();
}

#[test]
fn an_optional_repository_that_is_missing_is_noted_and_the_run_goes_on() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    let ended = scene.run(&repository(&git.url("nowhere"), "app", "required = false"));
    scene.assert_succeeded(&ended);
    assert_eq!(ended.step("clone app")["status"], "tolerated");
}

#[test]
fn a_repository_without_a_commit_is_no_workspace() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    git.add_empty("app").unwrap();
    let ended = scene.run(&repository(&git.url("app"), "app", ""));
    scene.assert_stopped(&ended, "workspace_incomplete", "verify app");
    assert_eq!(ended.step("clone app")["status"], "passed");
    assert!(ended.found("verify app").contains("empty"), "{}", ended.output);
}

#[test]
fn a_branch_a_tag_and_a_commit_are_where_the_repository_stands() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    let origin = git.add("app").unwrap();
    let wanted = [
        ("branch", "side", &origin.side),
        ("tag", "v1", &origin.first),
        ("commit", &origin.first, &origin.first),
        ("proposed", &origin.proposed, &origin.proposed),
        // Where a branch and a tag are called alike, git clones the branch.
        ("twin", "twin", &origin.side),
    ];
    let url = git.url("app");
    let tables = wanted.map(|(path, name, _)| repository(&url, path, &format!("ref = \"{name}\"")));
    let ended = scene.run(&tables.concat());
    scene.assert_succeeded(&ended);
    for (path, _, commit) in wanted {
        let found = ended.found(&format!("verify {path}"));
        assert!(found.contains(commit), "{path}: {found}");
    }
}

#[test]
fn a_ref_that_does_not_exist_leaves_the_workspace_incomplete() {
    let git = GitServer::start().unwrap();
    git.add("app").unwrap();
    for name in ["nothing-like-it", &"1234567890".repeat(4)] {
        let scene = Scene::new();
        let ended = scene.run(&repository(&git.url("app"), "app", &format!("ref = \"{name}\"")));
        scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    }
}

#[test]
fn a_repository_that_was_moved_elsewhere_after_its_clone_is_missed_by_the_verification() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    let origin = git.add("first").unwrap();
    git.add("second").unwrap();
    git.trouble("second", Fault::Hang, 1);
    let tables = repository(&git.url("first"), "first", "ref = \"main\"")
        + &repository(&git.url("second"), "second", "");
    let running = scene.start(&tables);
    assert!(eventually(PATIENCE, || git.fired("second") == 1), "{}", running.stderr());
    await_clone(&scene, "first");
    let head = scene.sandbox().join("workspace/work/first/.git/refs/heads/main");
    fs::write(head, format!("{}\n", origin.first)).unwrap();
    git.mend("second");
    let ended = scene.end(running);
    scene.assert_stopped(&ended, "workspace_incomplete", "verify first");
    let found = ended.found("verify first");
    assert!(found.contains(&origin.first) && found.contains(&origin.main), "{found}");
}

#[test]
fn a_repository_that_vanishes_after_its_clone_is_missed_by_the_verification() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    git.add("first").unwrap();
    git.add("second").unwrap();
    git.trouble("second", Fault::Hang, 1);
    let tables =
        repository(&git.url("first"), "first", "") + &repository(&git.url("second"), "second", "");
    let running = scene.start(&tables);
    assert!(eventually(PATIENCE, || git.fired("second") == 1), "{}", running.stderr());
    await_clone(&scene, "first");
    fs::remove_dir_all(scene.sandbox().join("workspace/work/first/.git")).unwrap();
    git.mend("second");
    let ended = scene.end(running);
    scene.assert_stopped(&ended, "workspace_incomplete", "verify first");
    assert_eq!(ended.step("clone first")["status"], "passed");
    assert_eq!(ended.found("verify first"), "the path has no .git");
}
