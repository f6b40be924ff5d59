//! Runs without a driver: closed by the next reconcile, whatever was lost with them.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::support::kill;

use super::run_fixture::{Moment, RunFixture, TestRun, agent, classes, processes_of, unique_sleep};

/// The number of killed runs.
const KILLS: u32 = 24;
/// The range of the kill instants, from the moment a run is on record.
const SPREAD: Duration = Duration::from_millis(240);

/// Kills the driver and its watchdog, like a service manager that ends a control group.
fn kill_all(fixture: &RunFixture) {
    for pid in fixture.home.processes() {
        kill(pid);
    }
    fixture.home.await_quiet();
}

#[test]
fn a_run_killed_during_its_sandbox_create_is_closed_by_the_next_reconcile() {
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.plant("provisioning");
    // The default: an unanswered create is searched for ten minutes.
    fixture.home.configure("[retry]\ninitial = \"50ms\"\n");
    let mut phases = Vec::new();
    for number in 0..KILLS {
        let mut test_run = fixture.start("10m", &agent("echo one; sleep 100"));
        std::thread::sleep(SPREAD * number / KILLS);
        kill_all(&fixture);
        drop(test_run.driver.take());
        phases.push(test_run.show()["phase"].as_str().unwrap().to_owned());
        let report = fixture.home.creel.run(["reconcile", "--json"]).expect_code(0).json();
        assert_eq!((&report["open_intents"], &report["runs_waiting"]), (&json!(0), &json!(0)));
        let shown = test_run.show();
        assert_eq!(shown["phase"], "failed", "kill {number} in {:?}: {shown:#}", phases.last());
        assert_eq!(classes(&shown), ["hub_error"], "kill {number}: {shown:#}");
        assert_eq!(shown["certificate"]["verified"], true, "kill {number}: {shown:#}");
        test_run.assert_events_whole();
        fixture.assert_nothing_left();
    }
    fixture.assert_foreign_untouched();
    println!("report: {KILLS} runs killed in {phases:?}, all closed by one reconcile");
}

/// Starts a run, and kills all creel processes while its agent works.
fn kill_in_turn<'a>(fixture: &'a RunFixture, sleep: &str) -> TestRun<'a> {
    let mut test_run = fixture.start("10m", &Moment::Turn.workflow(sleep));
    test_run.await_moment(Moment::Turn, sleep);
    kill_all(fixture);
    drop(test_run.driver.take());
    test_run
}

/// Removes a database of the state directory.
fn remove_database(fixture: &RunFixture, name: &str) {
    let file = |ending: &str| fixture.home.creel.state().join(format!("{name}{ending}"));
    fs::remove_file(file("")).unwrap();
    for ending in ["-wal", "-shm"] {
        // Whether the side files exist depends on which process closed the database last.
        let _ = fs::remove_file(file(ending));
    }
}

#[test]
fn a_run_whose_ledger_is_lost_is_closed_with_a_cause_once_the_ledger_was_rebuilt() {
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.plant("lost-ledger");
    let done = fixture.run(0, &agent("echo done"));
    let sleep = unique_sleep();
    let test_run = kill_in_turn(&fixture, &sleep);
    remove_database(&fixture, "ledger.db");
    let lost = fixture.home.creel.run(["show", &test_run.run]).expect_code(1);
    assert!(lost.stderr.starts_with("error[CR0016]: "), "{lost}");

    let rebuilt = fixture.home.creel.run(["ledger", "rebuild", "--apply", "--json"]);
    let rebuilt = rebuilt.expect_code(0).json();
    let runs = rebuilt["runs"].as_array().unwrap();
    let phases: Vec<_> = runs.iter().map(|run| (&run["run"], &run["phase"])).collect();
    let (finished, killed) = (&done["run"], &json!(test_run.run));
    assert_eq!(phases, [(finished, &json!("succeeded")), (killed, &json!("running"))]);
    assert_eq!(test_run.show()["phase"], "running");

    fixture.home.creel.run(["reconcile"]).expect_code(0);
    let shown = test_run.show();
    assert_eq!((&shown["phase"], classes(&shown)), (&json!("failed"), vec!["hub_error"]));
    assert!(processes_of(&sleep).is_empty(), "{sleep} still runs");
    test_run.assert_events_whole();
    fixture.home.creel.run(["ledger", "check"]).expect_code(0);
    fixture.assert_nothing_left();
    fixture.assert_foreign_untouched();
}

#[test]
fn a_run_whose_event_log_is_lost_is_closed_from_its_row() {
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.plant("lost-events");
    let done = fixture.run(0, &agent("echo done"));
    let sleep = unique_sleep();
    let test_run = kill_in_turn(&fixture, &sleep);
    remove_database(&fixture, "events.db");
    let closed = fixture.home.creel.run(["reconcile"]).expect_code(0);
    assert!(closed.stderr.contains("the log of a run has lost events"), "{closed}");
    let shown = test_run.show();
    assert_eq!(
        (&shown["phase"], &shown["certificate"]["verified"]),
        (&json!("failed"), &json!(true))
    );
    assert_eq!(classes(&shown), ["hub_error"]);
    // A run that was already over keeps its outcome. The loss of its events is noted on request.
    let unsound = fixture.home.creel.run(["ledger", "check"]).expect_code(1);
    let done = done["run"].as_str().unwrap();
    assert!(unsound.stderr.contains(done), "{unsound}");
    let noted = fixture.home.creel.run(["ledger", "rebuild", "--apply"]).expect_code(0);
    assert!(noted.stderr.contains(&format!("{done}: events 1 to ")), "{noted}");
    fixture.home.creel.run(["ledger", "check"]).expect_code(0);
    fixture.home.creel.run(["ledger", "rebuild"]).expect_code(4);
    let events = fixture.home.creel.run(["events", done]).expect_code(0);
    assert!(events.stdout.contains("are lost"), "{events}");
    let shown = fixture.home.creel.run(["show", done, "--json"]).expect_code(0).json();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}");
    fixture.assert_nothing_left();
    fixture.assert_foreign_untouched();
}
