//! The watchdog, and recovery when it is killed too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::wait::eventually;

use crate::support::{Holding, Home, PATIENCE, assert_killed};

/// One resource of each kind.
const EVERYTHING: &[&str] =
    &["--container", image::REFERENCE, "--network", "--volume", "--process", "--directory"];

/// The time limit to notice a killed supervisor.
const NOTICED_WITHIN: Duration = Duration::from_millis(200);

fn assert_nothing_left(home: &Home, engine: &Engine) {
    let left = (home.on_engine(engine), home.on_machine(), home.open_records());
    assert!(left.0.is_empty() && left.1.is_empty() && left.2.is_empty(), "{left:#?}");
}

/// Kills a supervisor, and returns how long it took until its records had another owner.
fn time_to_notice(home: &Home) -> Duration {
    let holding = home.hold(EVERYTHING);
    let resources = holding.resources();
    let killed_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert_killed(&holding.running.kill());
    home.await_quiet();
    let changes = resources.iter().map(|resource| {
        let events = home.events(resource);
        let change = events.iter().find(|event| event["event"] == "owner_changed");
        change.unwrap()["at_ms"].as_u64().unwrap()
    });
    // Wall time on both sides, on one machine. A clock that is set meanwhile spoils one round.
    Duration::from_millis(changes.max().unwrap()).saturating_sub(killed_at)
}

#[test]
fn a_killed_supervisor_is_noticed_within_a_fifth_of_a_second_and_its_resources_are_released() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    // The best of three, because the other tests keep both cores busy.
    let times: Vec<Duration> = (0..3).map(|_| time_to_notice(&home)).collect();
    assert_nothing_left(&home, &engine);
    println!("report: noticed after {times:?}");
    assert!(times.iter().any(|time| *time <= NOTICED_WITHIN), "{times:?}");
}

/// Acquires one resource of each kind, and kills the supervisor and its watchdog.
fn orphaned(home: &Home, arguments: &[&str]) -> Vec<String> {
    let holding = home.hold(&[EVERYTHING, arguments].concat());
    holding.kill_watchdog();
    let resources = holding.resources();
    assert_killed(&holding.running.kill());
    home.await_quiet();
    resources
}

#[test]
fn with_the_watchdog_killed_too_the_next_reconcile_releases_everything() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    assert_eq!(orphaned(&home, &[]).len(), 5);
    assert_eq!(home.on_engine(&engine).len(), 3);
    home.creel.run(["reconcile"]).expect_code(0);
    assert_nothing_left(&home, &engine);
}

#[test]
fn with_the_watchdog_killed_too_the_next_mutating_command_releases_everything() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    orphaned(&home, &[]);
    // It selects nothing: orphans are released in addition.
    let label = format!("no.such.label={}", home.ledger_id());
    home.creel.run(["sweep", "--label", &label, "--apply"]).expect_code(0);
    assert_nothing_left(&home, &engine);
}

#[test]
fn a_sweep_without_selectors_releases_orphans() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    orphaned(&home, &[]);
    let swept = home.creel.run(["sweep", "--apply", "--json"]).expect_code(0).json();
    assert_eq!((&swept["gone"], &swept["failed"]), (&5.into(), &0.into()), "{swept}");
    assert_nothing_left(&home, &engine);
}

#[test]
fn reading_deletes_nothing_and_reports_the_number_of_orphans() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    orphaned(&home, &[]);
    let before = (home.on_engine(&engine), home.records());
    let listed = home.creel.run(["ls", "--owned"]).expect_code(0);
    assert!(listed.stderr.contains("5 orphaned"), "{listed}");
    home.creel.run(["sweep"]).expect_code(0);
    assert_eq!((home.on_engine(&engine), home.records()), before);
    home.creel.run(["reconcile"]).expect_code(0);
    assert_nothing_left(&home, &engine);
}

#[test]
fn resources_held_on_death_stay_until_their_lease_ends() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    orphaned(&home, &["--hold-on-death", "--lease", "8s"]);
    home.creel.run(["reconcile"]).expect_code(0);
    assert_eq!(home.on_engine(&engine).len(), 3, "the lease had not ended");
    let released = eventually(PATIENCE, || {
        home.creel.run(["reconcile"]).expect_code(0);
        home.open_records().is_empty()
    });
    assert!(released, "{:#?}", home.open_records());
    assert_nothing_left(&home, &engine);
}

#[test]
fn a_watchdog_keeps_resources_held_on_death() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    let holding = home.hold(&["--volume", "--hold-on-death", "--lease", "1h"]);
    assert_killed(&holding.running.kill());
    home.await_quiet();
    assert_eq!(home.on_engine(&engine).len(), 1);
    // Its owner asked to keep it, so it is not an orphan, and is released only when it is named.
    assert!(!home.creel.run(["ls"]).stdout.contains("orphan"));
    let spared = home.creel.run(["sweep", "--apply"]).expect_code(0);
    assert!(spared.stdout.contains("kept as its owner asked"), "{spared}");
    assert_eq!(home.on_engine(&engine).len(), 1);
    home.creel.run(["sweep", "--owned", "--apply"]).expect_code(0);
    assert_nothing_left(&home, &engine);
}

#[test]
fn a_signal_releases_everything() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    for signal in ["TERM", "INT", "HUP"] {
        let Holding { running, .. } = home.hold(EVERYTHING);
        running.signal(signal);
        running.wait().expect_code(130);
        assert_nothing_left(&home, &engine);
    }
}
