//! Whatever is killed, and whenever: the outcome is recorded, its cause is named, nothing is left.

use creel_core::provider::ProviderName;
use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::wait::eventually;
use serde_json::Value;

use super::stage::{Moment, Stage, classes, processes_of, unique_sleep};
use crate::support::{LEDGER_LABEL, PATIENCE};

const WORLDS: [ProviderName; 3] =
    [ProviderName::Process, ProviderName::Docker, ProviderName::Daytona];

/// Look-alikes of what a run has, in the worlds that have strangers.
fn plant(stage: &Stage) -> Option<Decoys> {
    let original = Lookalike {
        name: crate::support::unique("cell"),
        label_key: LEDGER_LABEL.to_owned(),
        label_value: stage.home.ledger_id(),
    };
    stage.engine.as_ref().map(|engine| Decoys::plant(engine, &original).unwrap())
}

/// Checks what must be true of every run that has ended, however it did.
#[track_caller]
fn assert_ended(what: &str, shown: &Value, sleep: &str) {
    assert_eq!(shown["certificate"]["verified"], true, "{what}: {shown:#}");
    assert_eq!(shown["certificate"]["left"], Value::Array(Vec::new()), "{what}");
    let gone = eventually(PATIENCE, || processes_of(sleep).is_empty());
    assert!(gone, "{what}: {sleep} still runs");
}

/// Strikes the sandbox at every moment of a run.
fn kill_the_sandbox_in(world: ProviderName) {
    let stage = Stage::set(world);
    let decoys = plant(&stage);
    for moment in Moment::ALL {
        let sleep = unique_sleep();
        let cell = stage.start("10m", &moment.workflow(&sleep));
        cell.await_moment(moment, &sleep);
        cell.kill_sandbox();
        let what = format!("{moment:?} in {world}");
        if moment == Moment::Teardown {
            // The work was done; what happens to its remains does not undo it.
            let shown = cell.conclude(0);
            assert_eq!(shown["connection"], "offline", "{what}: {shown:#}");
            assert_ended(&what, &shown, &sleep);
        } else {
            let shown = cell.conclude(5);
            assert_eq!(classes(&shown), ["sandbox_lost"], "{what}: {shown:#}");
            assert_eq!(shown["connection"], "offline", "{what}: {shown:#}");
            assert_ended(&what, &shown, &sleep);
        }
        stage.assert_nothing_left();
    }
    if let Some(decoys) = decoys {
        decoys.assert_untouched();
    }
}

#[test]
fn a_process_tree_that_is_killed_at_any_moment_is_named_as_lost() {
    kill_the_sandbox_in(ProviderName::Process);
}

#[test]
fn a_container_that_is_killed_at_any_moment_is_named_as_lost() {
    kill_the_sandbox_in(ProviderName::Docker);
}

#[test]
fn a_cloud_sandbox_that_is_deleted_at_any_moment_is_named_as_lost() {
    kill_the_sandbox_in(ProviderName::Daytona);
}

#[test]
fn a_sandbox_that_is_lost_after_the_cause_stands_beside_it() {
    for world in WORLDS {
        let stage = Stage::set(world);
        let sleep = unique_sleep();
        let body = format!(
            "{}[[teardown]]\nname = \"wait\"\nrun = \"{sleep}\"\ntimeout = \"10m\"\n",
            super::stage::agent("exit 3")
        );
        let cell = stage.start("10m", &body);
        cell.await_moment(Moment::Teardown, &sleep);
        cell.kill_sandbox();
        let shown = cell.conclude(5);
        assert_eq!(shown["cause"]["class"], "agent_crashed", "{shown:#}");
        assert_eq!(classes(&shown), ["agent_crashed", "sandbox_lost"], "{shown:#}");
        assert_eq!(shown["connection"], "offline");
        assert_ended(&world.to_string(), &shown, &sleep);
        stage.assert_nothing_left();
    }
}

/// Strikes the driver of a foreground run at every moment.
fn kill_the_driver_in(world: ProviderName) {
    let stage = Stage::set(world);
    let decoys = plant(&stage);
    for moment in Moment::ALL {
        let sleep = unique_sleep();
        let mut cell = stage.start("10m", &moment.workflow(&sleep));
        cell.await_moment(moment, &sleep);
        cell.kill_driver();
        let shown = cell.await_end();
        let what = format!("{moment:?} in {world}");
        assert_eq!(shown["phase"], "failed", "{what}");
        assert_eq!(classes(&shown), ["hub_error"], "{what}: {shown:#}");
        assert_ended(&what, &shown, &sleep);
        cell.assert_events_whole();
        stage.home.await_quiet();
        stage.assert_nothing_left();
    }
    if let Some(decoys) = decoys {
        decoys.assert_untouched();
    }
}

#[test]
fn a_driver_that_is_killed_at_any_moment_leaves_no_process_tree() {
    kill_the_driver_in(ProviderName::Process);
}

#[test]
fn a_driver_that_is_killed_at_any_moment_leaves_no_container() {
    kill_the_driver_in(ProviderName::Docker);
}

#[test]
fn a_driver_that_is_killed_at_any_moment_leaves_no_cloud_sandbox() {
    kill_the_driver_in(ProviderName::Daytona);
}
