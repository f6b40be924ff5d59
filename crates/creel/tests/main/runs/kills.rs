//! Whatever is killed, and whenever: the outcome is recorded, its cause is named, nothing is left.

use std::time::Duration;

use creel_model::crashpoint::Crashpoint;
use creel_model::provider::ProviderName;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::{Value, json};

use crate::support::{PATIENCE, assert_killed, text_of};

use super::stage::{Cell, Moment, Stage, agent, classes, processes_of, short_sleep, unique_sleep};

const WORLDS: [ProviderName; 3] =
    [ProviderName::Process, ProviderName::Docker, ProviderName::Daytona];

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
    let mut stage = Stage::set(world);
    stage.plant("sandbox-killed");
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
    stage.assert_strangers_untouched();
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

/// Kills a sandbox that exists, and of which nothing was heard yet.
#[track_caller]
fn kill_the_unready(stage: &Stage, waits: impl FnMut() -> bool) {
    let sleep = unique_sleep();
    let cell = stage.start("10m", &Moment::Turn.workflow(&sleep));
    assert!(eventually(PATIENCE, waits), "nothing was held up: {}", cell.said());
    assert_eq!(cell.show()["phase"], "provisioning");
    cell.kill_sandbox();
    let shown = cell.conclude(5);
    assert_eq!(classes(&shown), ["provision_failed"], "{shown:#}");
    assert_ended("unready", &shown, &sleep);
    stage.assert_nothing_left();
}

/// How long what makes a sandbox ready is held up.
const HELD_UP: Duration = Duration::from_secs(4);

#[test]
fn a_container_that_is_killed_before_it_is_ready_is_no_sandbox() {
    let mut stage = Stage::set(ProviderName::Docker);
    stage.plant("unready");
    let wire = Wire::start(stage.engine.as_ref().unwrap(), 1).unwrap();
    stage.home = stage.home.moved_to(&wire.engine());
    let held_up = Rule::new("/containers/[^/]+/exec", Fault::Delay { by: HELD_UP });
    let held_up = wire.add(held_up.times(1));
    kill_the_unready(&stage, || held_up.fired() == 1);
    stage.assert_strangers_untouched();
}

#[test]
fn a_cloud_sandbox_that_is_deleted_before_it_is_ready_is_no_sandbox() {
    let mut stage = Stage::set(ProviderName::Daytona);
    stage.plant("unready");
    let cloud = stage.cloud.as_ref().unwrap();
    let held_up = json!({"at": "exec", "fault": "latency", "seconds": HELD_UP.as_secs()});
    cloud.arm(&held_up);
    kill_the_unready(&stage, || cloud.fired() > 0);
    stage.assert_strangers_untouched();
}

#[test]
fn a_sandbox_that_is_lost_after_the_cause_stands_beside_it() {
    for world in WORLDS {
        let stage = Stage::set(world);
        let sleep = unique_sleep();
        let body = format!(
            "{}[[teardown]]\nname = \"wait\"\nrun = \"{sleep}\"\ntimeout = \"10m\"\n",
            agent("exit 3")
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
    let mut stage = Stage::set(world);
    stage.plant("driver-killed");
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
    stage.assert_strangers_untouched();
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

#[test]
fn a_driver_and_its_watchdog_that_are_both_killed_leave_the_rest_to_the_next_command() {
    for world in WORLDS {
        let stage = Stage::set(world);
        for reconciles in [true, false] {
            let sleep = unique_sleep();
            let mut cell = stage.start("10m", &Moment::Turn.workflow(&sleep));
            cell.await_moment(Moment::Turn, &sleep);
            cell.kill_watchdog();
            cell.kill_driver();
            assert_eq!(cell.show()["phase"], "running", "nobody was left to close it");
            if reconciles {
                stage.home.creel.run(["reconcile"]).expect_code(0);
            } else {
                stage.run(0, &agent("echo another"));
            }
            let shown = cell.show();
            assert_eq!((&shown["phase"], classes(&shown)), (&"failed".into(), vec!["hub_error"]));
            assert_ended(&world.to_string(), &shown, &sleep);
        }
        stage.assert_nothing_left();
    }
}

/// Kills the driver at a named place; returns the run, once somebody else has closed it.
fn die_at(stage: &Stage, point: Crashpoint) -> String {
    let mark = stage.home.path("mark");
    let _ = std::fs::remove_file(&mark);
    let armed = stage.home.creel.clone().env("CREEL_CRASHPOINT", point.name());
    let armed = armed.env("CREEL_CRASHPOINT_MARK", &mark);
    let path = stage.workflow("10m", &agent("echo one"));
    assert_killed(&armed.run(["run".as_ref(), "--json".as_ref(), path.as_os_str()]));
    assert_eq!(text_of(&mark), point.name(), "it did not get there");
    stage.home.await_quiet();
    let listed = stage.home.creel.run(["runs", "--json"]).expect_code(0).json();
    let run = listed["runs"].as_array().unwrap().last().expect("a run is on record");
    run["run"].as_str().unwrap().to_owned()
}

#[test]
fn a_driver_that_dies_at_a_named_place_leaves_an_outcome_and_nothing_else() {
    let points = [
        Crashpoint::RunCreatedNotLogged,
        Crashpoint::RunLoggedNotSaved,
        Crashpoint::AfterIntent,
        Crashpoint::CreateSent,
        Crashpoint::CreatedNotRecorded,
        Crashpoint::TurnSentNotConfirmed,
        Crashpoint::ReleaseSent,
        Crashpoint::ReleasedNotVerified,
        Crashpoint::VerifiedNotClosed,
    ];
    for world in WORLDS {
        let stage = Stage::set(world);
        for point in points {
            let run = die_at(&stage, point);
            let cell = Cell { stage: &stage, run, driver: None };
            let (shown, what) = (cell.show(), format!("{} in {world}", point.name()));
            assert_eq!(shown["phase"], "failed", "{what}: {shown:#}");
            assert_eq!(classes(&shown), ["hub_error"], "{what}: {shown:#}");
            assert_eq!(shown["certificate"]["verified"], true, "{what}: {shown:#}");
            cell.assert_events_whole();
            stage.assert_nothing_left();
        }
    }
}

#[test]
fn a_mistake_of_ours_in_the_middle_of_a_turn_is_named_as_ours_and_nothing_is_left() {
    for world in WORLDS {
        let mut stage = Stage::set(world);
        stage.plant("panic");
        let (mark, sleep) = (stage.home.path("mark"), unique_sleep());
        let point = Crashpoint::TurnSentNotConfirmed;
        let armed =
            stage.home.creel.clone().env("CREEL_CRASHPOINT", format!("{}:panic", point.name()));
        let armed = armed.env("CREEL_CRASHPOINT_MARK", &mark);
        let path = stage.workflow("10m", &Moment::Turn.workflow(&sleep));
        let ended = armed.run(["run".as_ref(), "--json".as_ref(), path.as_os_str()]);
        let shown = ended.expect_code(5).json();
        assert_eq!(text_of(&mark), point.name(), "it did not get there");
        assert_eq!(classes(&shown), ["hub_error"], "{world}: {shown:#}");
        assert_ended(&world.to_string(), &shown, &sleep);
        stage.assert_nothing_left();
        stage.assert_strangers_untouched();
    }
}

/// Kills the driver of a background run at every moment, and takes the run up again.
fn take_up_in(world: ProviderName) {
    let stage = Stage::set(world);
    for moment in Moment::ALL {
        let (sleep, what) = (short_sleep(), format!("{moment:?} in {world}"));
        let mut cell = stage.detach("10m", &moment.workflow(&sleep));
        cell.await_moment(moment, &sleep);
        cell.kill_driver();
        let body = cell.body();
        let resumed = stage.home.creel.spawn(["resume", &cell.run, "--json"]);
        cell.driver = Some(resumed);
        if moment == Moment::Question {
            cell.await_owner();
            stage.home.creel.run(["message", &cell.run, "yes"]).expect_code(0);
        }
        let shown = cell.await_end();
        assert_eq!(shown["phase"], "succeeded", "{what}: {shown:#}\n{}", cell.said());
        assert_ended(&what, &shown, &sleep);
        let words = match moment {
            Moment::Question => "one\nyes\ntwo\n",
            Moment::Pause => "one\none\n",
            Moment::Setup | Moment::Turn | Moment::Teardown => "one\ntwo\n",
        };
        assert_eq!(cell.words(), words, "{what}: {:#?}", cell.events());
        cell.assert_events_whole();
        let is_it = |record: &Value| record["resource"] == body["resource"];
        let bodies = stage.home.records().into_iter().filter(is_it).count();
        assert_eq!(bodies, 1, "{what}: it went on in another sandbox");
        cell.conclude(0);
        stage.assert_nothing_left();
    }
}

#[test]
fn a_background_run_in_a_process_tree_is_taken_up_from_any_moment() {
    take_up_in(ProviderName::Process);
}

#[test]
fn a_background_run_in_a_container_is_taken_up_from_any_moment() {
    take_up_in(ProviderName::Docker);
}

#[test]
fn a_background_run_in_a_cloud_sandbox_is_taken_up_from_any_moment() {
    take_up_in(ProviderName::Daytona);
}

#[test]
fn a_background_run_that_nobody_takes_up_ends_with_its_lease() {
    for world in WORLDS {
        let stage = Stage::set(world);
        let sleep = unique_sleep();
        let mut cell = stage.detach("6s", &Moment::Turn.workflow(&sleep));
        cell.await_moment(Moment::Turn, &sleep);
        cell.kill_driver();
        stage.home.creel.run(["reconcile"]).expect_code(0);
        assert_eq!(cell.show()["phase"], "running", "the lease had not ended");
        assert_eq!(cell.body()["state"], "created");
        let closed = eventually(PATIENCE, || {
            stage.home.creel.run(["reconcile"]);
            cell.show()["phase"] == "failed"
        });
        let shown = cell.show();
        assert!(closed, "{shown:#}");
        assert_eq!(classes(&shown), ["lease_expired"], "{shown:#}");
        assert_ended(&world.to_string(), &shown, &sleep);
        stage.assert_nothing_left();
    }
}

#[test]
fn a_background_run_whose_driver_died_is_ended_by_cancel_at_once() {
    for world in WORLDS {
        let stage = Stage::set(world);
        let sleep = unique_sleep();
        let mut cell = stage.detach("10m", &Moment::Turn.workflow(&sleep));
        cell.await_moment(Moment::Turn, &sleep);
        cell.kill_driver();
        stage.home.creel.run(["cancel", &cell.run]).expect_code(0);
        let shown = cell.show();
        assert_eq!((&shown["phase"], classes(&shown)), (&"cancelled".into(), vec!["cancelled"]));
        assert_ended(&world.to_string(), &shown, &sleep);
        stage.assert_nothing_left();
    }
}
