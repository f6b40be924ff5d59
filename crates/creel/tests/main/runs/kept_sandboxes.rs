//! Sandboxes that a failed run keeps for inspection: entered, reused, released.

use std::path::Path;

use creel_testkit::creel::Output;
use creel_testkit::wait::eventually;
use serde_json::Value;

use crate::support::PATIENCE;

use super::run_fixture::{RunFixture, agent};

/// Runs a workflow that fails and keeps its sandbox.
fn fail_and_keep(fixture: &RunFixture, keep: &str, script: &str) -> Output {
    let body = format!("{}[on_failure]\nkeep = \"{keep}\"\n", agent(script));
    let path = fixture.workflow("10m", &body);
    fixture.home.creel.run(["run".as_ref(), path.as_os_str()]).expect_code(5)
}

/// Returns the rest of the line that begins with a prefix.
pub(super) fn after<'a>(output: &'a str, prefix: &str) -> &'a str {
    let line = output.lines().find_map(|line| line.trim().strip_prefix(prefix));
    line.unwrap_or_else(|| panic!("{prefix} is missing:\n{output}")).trim()
}

#[test]
fn a_kept_sandbox_is_entered_and_released_with_the_printed_commands() {
    for provider in [creel_process::NAME, creel_docker::NAME, creel_daytona::NAME] {
        let fixture = RunFixture::set(provider);
        let failed = fail_and_keep(&fixture, "10m", "echo kept >found; exit 1");
        assert!(failed.stderr.contains("kept: the sandbox exists until 20"), "{failed}");
        let shown = fixture.home.creel.run(["show", "last"]).expect_code(0);
        let enter = after(&shown.stdout, "enter it:");
        assert_eq!(enter, after(&failed.stderr, "enter it:"));
        match provider {
            creel_process::NAME => {
                let directory = enter.strip_prefix("cd ").unwrap();
                assert!(Path::new(directory).join("workspace/work/found").exists(), "{directory}");
            }
            creel_docker::NAME => {
                let id =
                    enter.strip_prefix("docker exec -it ").unwrap().strip_suffix(" sh").unwrap();
                let docker = fixture.engine.as_ref().unwrap().docker();
                let found = docker.cli(&["exec", id, "cat", "/workspace/work/found"]).unwrap();
                assert_eq!(found.stdout, b"kept\n");
            }
            _ => {
                let id = enter.split(' ').nth(3).unwrap();
                assert_eq!(fixture.cloud.as_ref().unwrap().state(id), "started");
            }
        }
        fixture.home.creel.run(["reconcile"]).expect_code(0);
        assert!(!fixture.home.open_records().is_empty(), "the time had not come");
        let rm = after(&failed.stderr, "release it: creel ");
        fixture.home.creel.run(rm.split(' ')).expect_code(0);
        fixture.assert_nothing_left();
        let shown = fixture.home.creel.run(["show", "last", "--json"]).json();
        assert_eq!(shown["certificate"]["verified"], true, "{shown:#}");
        assert_eq!(shown["kept_until"], Value::Null);
    }
}

#[test]
fn a_kept_sandbox_is_released_when_its_time_is_over() {
    let fixture = RunFixture::set(creel_process::NAME);
    fail_and_keep(&fixture, "3s", "exit 1");
    assert!(!fixture.home.open_records().is_empty());
    let gone = eventually(PATIENCE, || {
        fixture.home.creel.run(["reconcile"]).expect_code(0);
        fixture.home.open_records().is_empty()
    });
    assert!(gone, "{:#?}", fixture.home.open_records());
    fixture.assert_nothing_left();
    let shown = fixture.home.creel.run(["show", "last", "--json"]).json();
    assert_eq!(
        (&shown["phase"], &shown["certificate"]["verified"]),
        (&"failed".into(), &true.into())
    );
}

#[test]
fn another_attempt_starts_with_the_checklist_in_the_kept_sandbox() {
    for provider in [creel_process::NAME, creel_docker::NAME, creel_daytona::NAME] {
        let fixture = RunFixture::set(provider);
        fail_and_keep(
            &fixture,
            "10m",
            "test -e found && echo again && exit 0; echo >found; exit 1",
        );
        let before = fixture.home.records().len();
        // The first attempt fails at its end, so its files exist in the second.
        let again = fixture.home.creel.run(["retry", "last", "--from", "bootstrap", "--json"]);
        let again = again.expect_code(0).json();
        assert_eq!((&again["attempt"], &again["phase"]), (&2.into(), &"succeeded".into()));
        assert_eq!(fixture.home.records().len(), before, "something new was made");
        assert_eq!(again["checklist"][0]["step"], "sandbox");
        let events = fixture.home.creel.run(["events", "last", "--json"]).stdout;
        assert!(events.contains("again"), "{events}");
        fixture.assert_nothing_left();
    }
}

#[test]
fn another_attempt_from_scratch_releases_the_kept_sandbox_first() {
    let fixture = RunFixture::set(creel_process::NAME);
    let gate = fixture.home.path("gate");
    fail_and_keep(&fixture, "10m", &format!("test -e {}", gate.display()));
    std::fs::write(&gate, "").unwrap();
    let again = fixture.home.creel.run(["retry", "last", "--json"]).expect_code(0).json();
    assert_eq!(again["certificate"]["verified"], true, "{again:#}");
    fixture.assert_nothing_left();
}

#[test]
fn a_driver_that_is_killed_in_a_kept_sandbox_leaves_nothing() {
    let fixture = RunFixture::set(creel_process::NAME);
    fail_and_keep(&fixture, "10m", "test -e found && sleep 1000; echo >found; exit 1");
    let retry = fixture.home.creel.spawn(["retry", "last", "--from", "bootstrap"]);
    let show = || fixture.home.creel.run(["show", "last", "--json"]).json();
    let runs = eventually(PATIENCE, || show()["phase"] == "running");
    assert!(runs, "{}", retry.stderr());
    retry.kill();
    fixture.home.await_quiet();
    let shown = show();
    assert_eq!(shown["cause"]["class"], "hub_error", "{shown:#}");
    assert_eq!(shown["certificate"]["verified"], true, "{shown:#}");
    fixture.assert_nothing_left();
}
