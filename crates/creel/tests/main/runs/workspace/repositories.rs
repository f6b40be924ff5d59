//! A repository is in the requested state, or nothing starts.

use std::fs;

use creel_testkit::git::{GitFault, GitServer};
use creel_testkit::wait::eventually;

use crate::runs::workflow_fixture::WorkflowFixture;
use crate::support::PATIENCE;

/// Writes a repository of a workflow; `more` are further keys.
pub(super) fn repository(url: &str, path: &str, more: &str) -> String {
    format!("[[workspace.repositories]]\nurl = \"{url}\"\npath = \"{path}\"\n{more}\n")
}

/// Waits until a repository is cloned, while other clones may still run.
fn await_clone(fixture: &WorkflowFixture, path: &str) {
    let name = format!("clone {path}");
    let is_cloned = || {
        let shown = fixture.home.creel.run(["show", "last", "--json"]).expect_code(0).json();
        let steps = shown["checklist"].as_array().cloned().unwrap_or_default();
        steps.iter().any(|step| step["step"] == name.as_str() && step["status"] == "passed")
    };
    assert!(eventually(PATIENCE, is_cloned), "{name} did not pass");
}

/// Keeps the sandbox of a run that fails.
pub(super) const KEEP: &str = "[on_failure]\nkeep = \"5m\"\n";

#[test]
fn a_repository_is_cloned_and_verified_before_anything_starts() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let origin = git.add("app").unwrap();
    let ended = fixture.run(&repository(&git.url("app"), "app", ""));
    fixture.assert_succeeded(&ended);
    assert!(ended.text().contains(&origin.main), "{}", ended.text());
    let place = |wanted: &dyn Fn(&serde_json::Value) -> bool| {
        ended.events.iter().position(wanted).expect("it happened")
    };
    let verified =
        place(&|event| event["event"] == "step_ended" && event["step"]["step"] == "verify app");
    let sequence = ["bootstrap_ok", "bridge_started", "turn_started"]
        .map(|name| place(&|event: &serde_json::Value| event["event"] == name));
    assert!(verified < sequence[0] && sequence.is_sorted(), "{:?}", ended.names());
}

#[test]
fn without_a_required_repository_neither_bridge_nor_agent_starts() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let ended = fixture.run(&(repository(&git.url("nowhere"), "app", "") + KEEP));
    ended.assert_cause("workspace_incomplete", "clone app");
    fixture.assert_nothing_started(&ended);
    assert!(git.requests().iter().any(|request| request.path.starts_with("/nowhere.git")));
    assert!(ended.report["cause"]["message"].as_str().unwrap().contains("not found"));
    let sandbox = fixture.sandbox();
    assert!(!sandbox.join(".creel/bridge").exists(), "a bridge was here");
    assert!(!sandbox.join("workspace/work/app").exists());
    fixture.release_kept();
}

#[test]
fn an_optional_repository_that_is_missing_is_noted_and_the_run_goes_on() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let ended = fixture.run(&repository(&git.url("nowhere"), "app", "required = false"));
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.step("clone app")["status"], "tolerated");
}

#[test]
fn a_repository_without_a_commit_is_an_incomplete_workspace() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    git.add_empty("app").unwrap();
    let ended = fixture.run(&repository(&git.url("app"), "app", ""));
    fixture.assert_stopped(&ended, "workspace_incomplete", "verify app");
    assert_eq!(ended.step("clone app")["status"], "passed");
    assert!(ended.found("verify app").contains("empty"), "{}", ended.output);
}

#[test]
fn a_branch_a_tag_and_a_commit_are_checked_out() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let origin = git.add("app").unwrap();
    let wanted = [
        ("branch", "side", &origin.side),
        ("tag", "v1", &origin.first),
        ("commit", &origin.first, &origin.first),
        ("proposed", &origin.proposed, &origin.proposed),
        // If a branch and a tag have the same name, git clones the branch.
        ("twin", "twin", &origin.side),
    ];
    let url = git.url("app");
    let tables = wanted.map(|(path, name, _)| repository(&url, path, &format!("ref = \"{name}\"")));
    let ended = fixture.run(&tables.concat());
    fixture.assert_succeeded(&ended);
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
        let fixture = WorkflowFixture::new();
        let ended = fixture.run(&repository(&git.url("app"), "app", &format!("ref = \"{name}\"")));
        fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    }
}

#[test]
fn the_verification_detects_a_repository_changed_after_its_clone() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let origin = git.add("first").unwrap();
    git.add("second").unwrap();
    git.arm("second", GitFault::Hang, 1);
    let tables = repository(&git.url("first"), "first", "ref = \"main\"")
        + &repository(&git.url("second"), "second", "");
    let running = fixture.start(&tables);
    assert!(eventually(PATIENCE, || git.fired("second") == 1), "{}", running.stderr());
    await_clone(&fixture, "first");
    let head = fixture.sandbox().join("workspace/work/first/.git/refs/heads/main");
    fs::write(head, format!("{}\n", origin.first)).unwrap();
    git.disarm("second");
    let ended = fixture.end(running);
    fixture.assert_stopped(&ended, "workspace_incomplete", "verify first");
    let found = ended.found("verify first");
    assert!(found.contains(&origin.first) && found.contains(&origin.main), "{found}");
}

#[test]
fn the_verification_detects_a_repository_that_vanished_after_its_clone() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    git.add("first").unwrap();
    git.add("second").unwrap();
    git.arm("second", GitFault::Hang, 1);
    let tables =
        repository(&git.url("first"), "first", "") + &repository(&git.url("second"), "second", "");
    let running = fixture.start(&tables);
    assert!(eventually(PATIENCE, || git.fired("second") == 1), "{}", running.stderr());
    await_clone(&fixture, "first");
    fs::remove_dir_all(fixture.sandbox().join("workspace/work/first/.git")).unwrap();
    git.disarm("second");
    let ended = fixture.end(running);
    fixture.assert_stopped(&ended, "workspace_incomplete", "verify first");
    assert_eq!(ended.step("clone first")["status"], "passed");
    assert_eq!(ended.found("verify first"), "the path has no .git");
}
