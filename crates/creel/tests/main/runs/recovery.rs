//! Runs that nobody drives any more: closed by the next reconcile, whatever was lost with them.

use std::fs;
use std::time::Duration;

use creel_model::provider::ProviderName;
use serde_json::json;

use crate::support::kill;

use super::stage::{Cell, Moment, Stage, agent, classes, processes_of, unique_sleep};

/// How many runs are killed.
const KILLS: u32 = 24;
/// The range of instants, from the moment a run is on record, in which they are.
const SPREAD: Duration = Duration::from_millis(240);

/// Kills the driver and its watchdog, as a service manager does that ends a control group.
fn kill_all(stage: &Stage) {
    for pid in stage.home.processes() {
        kill(pid);
    }
    stage.home.await_quiet();
}

#[test]
fn a_run_that_is_killed_while_its_sandbox_is_made_is_closed_by_the_next_reconcile() {
    let mut stage = Stage::set(ProviderName::Process);
    stage.plant("provisioning");
    // As a user has it: an unanswered create is searched for ten minutes.
    stage.home.configure("[retry]\ninitial = \"50ms\"\n");
    let mut phases = Vec::new();
    for number in 0..KILLS {
        let mut cell = stage.start("10m", &agent("echo one; sleep 100"));
        std::thread::sleep(SPREAD * number / KILLS);
        kill_all(&stage);
        drop(cell.driver.take());
        phases.push(cell.show()["phase"].as_str().unwrap().to_owned());
        let told = stage.home.creel.run(["reconcile", "--json"]).expect_code(0).json();
        assert_eq!((&told["open_intents"], &told["runs_waiting"]), (&json!(0), &json!(0)));
        let shown = cell.show();
        assert_eq!(shown["phase"], "failed", "kill {number} in {:?}: {shown:#}", phases.last());
        assert_eq!(classes(&shown), ["hub_error"], "kill {number}: {shown:#}");
        assert_eq!(shown["certificate"]["verified"], true, "kill {number}: {shown:#}");
        cell.assert_events_whole();
        stage.assert_nothing_left();
    }
    stage.assert_strangers_untouched();
    println!("report: {KILLS} runs killed in {phases:?}, all closed by one reconcile");
}

/// Starts a run, and kills everything of creel while its agent works.
fn kill_in_turn<'a>(stage: &'a Stage, sleep: &str) -> Cell<'a> {
    let mut cell = stage.start("10m", &Moment::Turn.workflow(sleep));
    cell.await_moment(Moment::Turn, sleep);
    kill_all(stage);
    drop(cell.driver.take());
    cell
}

/// Removes a database of the state directory.
fn remove_database(stage: &Stage, name: &str) {
    let file = |ending: &str| stage.home.creel.state().join(format!("{name}{ending}"));
    fs::remove_file(file("")).unwrap();
    for ending in ["-wal", "-shm"] {
        // Whether the side files exist depends on who closed the database last.
        let _ = fs::remove_file(file(ending));
    }
}

#[test]
fn a_run_whose_ledger_is_lost_is_closed_with_a_cause_once_the_ledger_was_rebuilt() {
    let mut stage = Stage::set(ProviderName::Process);
    stage.plant("lost-ledger");
    let done = stage.run(0, &agent("echo done"));
    let sleep = unique_sleep();
    let cell = kill_in_turn(&stage, &sleep);
    remove_database(&stage, "ledger.db");
    let lost = stage.home.creel.run(["show", &cell.run]).expect_code(1);
    assert!(lost.stderr.starts_with("error[CR0016]: "), "{lost}");

    let rebuilt = stage.home.creel.run(["ledger", "rebuild", "--apply", "--json"]);
    let rebuilt = rebuilt.expect_code(0).json();
    let runs = rebuilt["runs"].as_array().unwrap();
    let phases: Vec<_> = runs.iter().map(|run| (&run["run"], &run["phase"])).collect();
    let (finished, killed) = (&done["run"], &json!(cell.run));
    assert_eq!(phases, [(finished, &json!("succeeded")), (killed, &json!("running"))]);
    assert_eq!(cell.show()["phase"], "running");

    stage.home.creel.run(["reconcile"]).expect_code(0);
    let shown = cell.show();
    assert_eq!((&shown["phase"], classes(&shown)), (&json!("failed"), vec!["hub_error"]));
    assert!(processes_of(&sleep).is_empty(), "{sleep} still runs");
    cell.assert_events_whole();
    stage.home.creel.run(["ledger", "check"]).expect_code(0);
    stage.assert_nothing_left();
    stage.assert_strangers_untouched();
}

#[test]
fn a_run_whose_event_log_is_lost_is_closed_from_its_row() {
    let mut stage = Stage::set(ProviderName::Process);
    stage.plant("lost-events");
    let done = stage.run(0, &agent("echo done"));
    let sleep = unique_sleep();
    let cell = kill_in_turn(&stage, &sleep);
    remove_database(&stage, "events.db");
    let closed = stage.home.creel.run(["reconcile"]).expect_code(0);
    assert!(closed.stderr.contains("the log of a run has lost events"), "{closed}");
    let shown = cell.show();
    assert_eq!(
        (&shown["phase"], &shown["certificate"]["verified"]),
        (&json!("failed"), &json!(true))
    );
    assert_eq!(classes(&shown), ["hub_error"]);
    // What was over before keeps its outcome; that its events are lost is noted on request.
    let unsound = stage.home.creel.run(["ledger", "check"]).expect_code(1);
    let done = done["run"].as_str().unwrap();
    assert!(unsound.stderr.contains(done), "{unsound}");
    let noted = stage.home.creel.run(["ledger", "rebuild", "--apply"]).expect_code(0);
    assert!(noted.stderr.contains(&format!("{done}: events 1 to ")), "{noted}");
    stage.home.creel.run(["ledger", "check"]).expect_code(0);
    stage.home.creel.run(["ledger", "rebuild"]).expect_code(4);
    let events = stage.home.creel.run(["events", done]).expect_code(0);
    assert!(events.stdout.contains("are lost"), "{events}");
    let shown = stage.home.creel.run(["show", done, "--json"]).expect_code(0).json();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}");
    stage.assert_nothing_left();
    stage.assert_strangers_untouched();
}
