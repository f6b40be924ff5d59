//! What a failed run keeps for people to look at: entered, used again, given back.

use std::path::Path;

use creel_model::provider::ProviderName;
use creel_testkit::creel::Output;
use creel_testkit::wait::eventually;
use serde_json::Value;

use crate::support::PATIENCE;

use super::stage::{Stage, agent};

/// Runs a workflow that fails and keeps its sandbox.
fn fail_and_keep(stage: &Stage, keep: &str, script: &str) -> Output {
    let body = format!("{}[on_failure]\nkeep = \"{keep}\"\n", agent(script));
    let path = stage.workflow("10m", &body);
    stage.home.creel.run(["run".as_ref(), path.as_os_str()]).expect_code(5)
}

/// Returns what follows some words in what a command said.
pub(super) fn after<'a>(said: &'a str, words: &str) -> &'a str {
    let line = said.lines().find_map(|line| line.trim().strip_prefix(words));
    line.unwrap_or_else(|| panic!("{words} was not said:\n{said}")).trim()
}

#[test]
fn what_a_failed_run_kept_is_entered_as_told_and_given_back_as_told() {
    for world in [ProviderName::Process, ProviderName::Docker, ProviderName::Daytona] {
        let stage = Stage::set(world);
        let failed = fail_and_keep(&stage, "10m", "echo kept >found; exit 1");
        assert!(failed.stderr.contains("kept: the sandbox exists until 20"), "{failed}");
        let shown = stage.home.creel.run(["show", "last"]).expect_code(0);
        let way = after(&shown.stdout, "enter it:");
        assert_eq!(way, after(&failed.stderr, "enter it:"));
        match world {
            ProviderName::Process => {
                let directory = way.strip_prefix("cd ").unwrap();
                assert!(Path::new(directory).join("workspace/work/found").exists(), "{directory}");
            }
            ProviderName::Docker => {
                let id = way.strip_prefix("docker exec -it ").unwrap().strip_suffix(" sh").unwrap();
                let docker = stage.engine.as_ref().unwrap().docker();
                let found = docker.cli(&["exec", id, "cat", "/workspace/work/found"]).unwrap();
                assert_eq!(found.stdout, b"kept\n");
            }
            ProviderName::Daytona => {
                let id = way.split(' ').nth(3).unwrap();
                assert_eq!(stage.cloud.as_ref().unwrap().state(id), "started");
            }
        }
        stage.home.creel.run(["reconcile"]).expect_code(0);
        assert!(!stage.home.open_records().is_empty(), "the time had not come");
        let rm = after(&failed.stderr, "give it back: creel ");
        stage.home.creel.run(rm.split(' ')).expect_code(0);
        stage.assert_nothing_left();
        let shown = stage.home.creel.run(["show", "last", "--json"]).json();
        assert_eq!(shown["certificate"]["verified"], true, "{shown:#}");
        assert_eq!(shown["kept_until"], Value::Null);
    }
}

#[test]
fn what_was_kept_is_given_back_when_its_time_has_come() {
    let stage = Stage::set(ProviderName::Process);
    fail_and_keep(&stage, "3s", "exit 1");
    assert!(!stage.home.open_records().is_empty());
    let gone = eventually(PATIENCE, || {
        stage.home.creel.run(["reconcile"]).expect_code(0);
        stage.home.open_records().is_empty()
    });
    assert!(gone, "{:#?}", stage.home.open_records());
    stage.assert_nothing_left();
    let shown = stage.home.creel.run(["show", "last", "--json"]).json();
    assert_eq!(
        (&shown["phase"], &shown["certificate"]["verified"]),
        (&"failed".into(), &true.into())
    );
}

#[test]
fn another_attempt_begins_with_the_checklist_in_the_sandbox_that_was_kept() {
    for world in [ProviderName::Process, ProviderName::Docker, ProviderName::Daytona] {
        let stage = Stage::set(world);
        fail_and_keep(&stage, "10m", "test -e found && echo again && exit 0; echo >found; exit 1");
        let before = stage.home.records().len();
        // The first attempt fails at its end: what it wrote is there for the second.
        let again = stage.home.creel.run(["retry", "last", "--from", "bootstrap", "--json"]);
        let again = again.expect_code(0).json();
        assert_eq!((&again["attempt"], &again["phase"]), (&2.into(), &"succeeded".into()));
        assert_eq!(stage.home.records().len(), before, "something new was made");
        assert_eq!(again["checklist"][0]["step"], "sandbox");
        let events = stage.home.creel.run(["events", "last", "--json"]).stdout;
        assert!(events.contains("again"), "{events}");
        stage.assert_nothing_left();
    }
}

#[test]
fn another_attempt_from_scratch_gives_back_what_was_kept_first() {
    let stage = Stage::set(ProviderName::Process);
    let gate = stage.home.path("gate");
    fail_and_keep(&stage, "10m", &format!("test -e {}", gate.display()));
    std::fs::write(&gate, "").unwrap();
    let again = stage.home.creel.run(["retry", "last", "--json"]).expect_code(0).json();
    assert_eq!(again["certificate"]["verified"], true, "{again:#}");
    stage.assert_nothing_left();
}

#[test]
fn a_driver_that_is_killed_in_the_sandbox_that_was_kept_leaves_nothing() {
    let stage = Stage::set(ProviderName::Process);
    fail_and_keep(&stage, "10m", "test -e found && sleep 1000; echo >found; exit 1");
    let retry = stage.home.creel.spawn(["retry", "last", "--from", "bootstrap"]);
    let show = || stage.home.creel.run(["show", "last", "--json"]).json();
    let runs = eventually(PATIENCE, || show()["phase"] == "running");
    assert!(runs, "{}", retry.stderr());
    retry.kill();
    stage.home.await_quiet();
    let shown = show();
    assert_eq!(shown["cause"]["class"], "hub_error", "{shown:#}");
    assert_eq!(shown["certificate"]["verified"], true, "{shown:#}");
    stage.assert_nothing_left();
}
