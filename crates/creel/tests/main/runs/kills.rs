//! Kills at any moment: the outcome is recorded, its cause is named, nothing is left.

use std::time::{Duration, Instant};

use creel_model::crashpoint::Crashpoint;
use creel_model::provider::ProviderName;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::{Value, json};

use crate::support::{PATIENCE, assert_killed, text_of};

use super::run_fixture::{
    Moment, RunFixture, TestRun, agent, classes, processes_of, short_sleep, unique_sleep,
};

const PROVIDERS: [ProviderName; 3] = [creel_process::NAME, creel_docker::NAME, creel_daytona::NAME];

/// Asserts what must hold for every ended run, however it ended.
#[track_caller]
fn assert_ended(what: &str, shown: &Value, sleep: &str) {
    assert_eq!(shown["certificate"]["verified"], true, "{what}: {shown:#}");
    assert_eq!(shown["certificate"]["left"], Value::Array(Vec::new()), "{what}");
    let gone = eventually(PATIENCE, || processes_of(sleep).is_empty());
    assert!(gone, "{what}: {sleep} still runs");
}

/// Kills the sandbox at every moment of a run.
fn kill_the_sandbox_in(provider: ProviderName) {
    let mut fixture = RunFixture::set(provider);
    fixture.plant("sandbox-killed");
    for moment in Moment::ALL {
        let sleep = unique_sleep();
        let test_run = fixture.start("10m", &moment.workflow(&sleep));
        test_run.await_moment(moment, &sleep);
        test_run.kill_sandbox();
        let what = format!("{moment:?} in {provider}");
        if moment == Moment::Teardown {
            // The work was done. The loss of its sandbox does not change the outcome.
            let shown = test_run.conclude(0);
            assert_eq!(shown["connection"], "offline", "{what}: {shown:#}");
            assert_ended(&what, &shown, &sleep);
        } else {
            let shown = test_run.conclude(5);
            assert_eq!(classes(&shown), ["sandbox_lost"], "{what}: {shown:#}");
            assert_eq!(shown["connection"], "offline", "{what}: {shown:#}");
            assert_ended(&what, &shown, &sleep);
        }
        fixture.assert_nothing_left();
    }
    fixture.assert_foreign_untouched();
}

#[test]
fn a_process_tree_killed_at_any_moment_is_reported_as_lost() {
    kill_the_sandbox_in(creel_process::NAME);
}

#[test]
fn a_container_killed_at_any_moment_is_reported_as_lost() {
    kill_the_sandbox_in(creel_docker::NAME);
}

#[test]
fn a_cloud_sandbox_deleted_at_any_moment_is_reported_as_lost() {
    kill_the_sandbox_in(creel_daytona::NAME);
}

/// How soon the loss of a sandbox must be noticed on a loaded machine. All limits of the runs are
/// minutes long.
const NOTICED: Duration = Duration::from_secs(30);

#[test]
fn a_killed_process_tree_that_stays_frozen_is_reported_as_lost_at_once() {
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.plant("frozen-killed");
    for moment in [Moment::Setup, Moment::Turn, Moment::Question, Moment::Pause] {
        let sleep = unique_sleep();
        let test_run = fixture.start("10m", &moment.workflow(&sleep));
        test_run.await_moment(moment, &sleep);
        // As if the holder was killed between the freeze and the thaw of its own kill.
        test_run.freeze_sandbox();
        test_run.kill_sandbox();
        let killed_at = Instant::now();
        let shown = test_run.conclude(5);
        let took = killed_at.elapsed();
        assert_eq!(classes(&shown), ["sandbox_lost"], "{moment:?}: {shown:#}");
        assert!(took < NOTICED, "{moment:?}: it took {took:?}");
        assert_ended(&format!("{moment:?}"), &shown, &sleep);
        fixture.assert_nothing_left();
    }
    fixture.assert_foreign_untouched();
}

/// Kills a sandbox that exists and has not reported anything yet.
#[track_caller]
fn kill_before_ready(fixture: &RunFixture, waits: impl FnMut() -> bool) {
    let sleep = unique_sleep();
    let test_run = fixture.start("10m", &Moment::Turn.workflow(&sleep));
    assert!(eventually(PATIENCE, waits), "nothing was held up: {}", test_run.stderr());
    assert_eq!(test_run.show()["phase"], "provisioning");
    test_run.kill_sandbox();
    let shown = test_run.conclude(5);
    assert_eq!(classes(&shown), ["provision_failed"], "{shown:#}");
    assert_ended("unready", &shown, &sleep);
    fixture.assert_nothing_left();
}

/// The delay of what makes a sandbox ready.
const HELD_UP: Duration = Duration::from_secs(4);

#[test]
fn a_container_killed_before_it_is_ready_is_a_failed_provisioning() {
    let mut fixture = RunFixture::set(creel_docker::NAME);
    fixture.plant("unready");
    let wire = Wire::start(fixture.engine.as_ref().unwrap(), 1).unwrap();
    fixture.home = fixture.home.moved_to(&wire.engine());
    let held_up = Rule::new("/containers/[^/]+/exec", Fault::Delay { by: HELD_UP });
    let held_up = wire.add(held_up.times(1));
    kill_before_ready(&fixture, || held_up.fired() == 1);
    fixture.assert_foreign_untouched();
}

#[test]
fn a_cloud_sandbox_deleted_before_it_is_ready_is_a_failed_provisioning() {
    let mut fixture = RunFixture::set(creel_daytona::NAME);
    fixture.plant("unready");
    let cloud = fixture.cloud.as_ref().unwrap();
    let held_up = json!({"at": "exec", "fault": "latency", "seconds": HELD_UP.as_secs()});
    cloud.arm(&held_up);
    kill_before_ready(&fixture, || cloud.fired() > 0);
    fixture.assert_foreign_untouched();
}

#[test]
fn the_loss_of_a_sandbox_after_the_cause_is_recorded_as_a_second_cause() {
    for provider in PROVIDERS {
        let fixture = RunFixture::set(provider);
        let sleep = unique_sleep();
        let body = format!(
            "{}[[teardown]]\nname = \"wait\"\nrun = \"{sleep}\"\ntimeout = \"10m\"\n",
            agent("exit 3")
        );
        let test_run = fixture.start("10m", &body);
        test_run.await_moment(Moment::Teardown, &sleep);
        test_run.kill_sandbox();
        let shown = test_run.conclude(5);
        assert_eq!(shown["cause"]["class"], "agent_crashed", "{shown:#}");
        assert_eq!(classes(&shown), ["agent_crashed", "sandbox_lost"], "{shown:#}");
        assert_eq!(shown["connection"], "offline");
        assert_ended(&provider.to_string(), &shown, &sleep);
        fixture.assert_nothing_left();
    }
}

/// Kills the driver of a foreground run at every moment.
fn kill_the_driver_in(provider: ProviderName) {
    let mut fixture = RunFixture::set(provider);
    fixture.plant("driver-killed");
    for moment in Moment::ALL {
        let sleep = unique_sleep();
        let mut test_run = fixture.start("10m", &moment.workflow(&sleep));
        test_run.await_moment(moment, &sleep);
        test_run.kill_driver();
        let shown = test_run.await_end();
        let what = format!("{moment:?} in {provider}");
        assert_eq!(shown["phase"], "failed", "{what}");
        assert_eq!(classes(&shown), ["hub_error"], "{what}: {shown:#}");
        assert_ended(&what, &shown, &sleep);
        test_run.assert_events_whole();
        fixture.home.await_quiet();
        fixture.assert_nothing_left();
    }
    fixture.assert_foreign_untouched();
}

#[test]
fn a_driver_that_is_killed_at_any_moment_leaves_no_process_tree() {
    kill_the_driver_in(creel_process::NAME);
}

#[test]
fn a_driver_that_is_killed_at_any_moment_leaves_no_container() {
    kill_the_driver_in(creel_docker::NAME);
}

#[test]
fn a_driver_that_is_killed_at_any_moment_leaves_no_cloud_sandbox() {
    kill_the_driver_in(creel_daytona::NAME);
}

#[test]
fn if_driver_and_watchdog_are_killed_the_next_command_cleans_up() {
    for provider in PROVIDERS {
        let fixture = RunFixture::set(provider);
        for reconciles in [true, false] {
            let sleep = unique_sleep();
            let mut test_run = fixture.start("10m", &Moment::Turn.workflow(&sleep));
            test_run.await_moment(Moment::Turn, &sleep);
            test_run.kill_watchdog();
            test_run.kill_driver();
            assert_eq!(test_run.show()["phase"], "running", "no process was left to close it");
            if reconciles {
                fixture.home.creel.run(["reconcile"]).expect_code(0);
            } else {
                fixture.run(0, &agent("echo another"));
            }
            let shown = test_run.show();
            assert_eq!((&shown["phase"], classes(&shown)), (&"failed".into(), vec!["hub_error"]));
            assert_ended(&provider.to_string(), &shown, &sleep);
        }
        fixture.assert_nothing_left();
    }
}

/// Kills the driver at a crashpoint. Returns the run, once another process has closed it.
fn die_at(fixture: &RunFixture, point: Crashpoint) -> String {
    let mark = fixture.home.path("mark");
    let _ = std::fs::remove_file(&mark);
    let armed = fixture.home.creel.clone().env("CREEL_CRASHPOINT", point.name());
    let armed = armed.env("CREEL_CRASHPOINT_MARK", &mark);
    let path = fixture.workflow("10m", &agent("echo one"));
    assert_killed(&armed.run(["run".as_ref(), "--json".as_ref(), path.as_os_str()]));
    assert_eq!(text_of(&mark), point.name(), "it did not get there");
    fixture.home.await_quiet();
    let listed = fixture.home.creel.run(["runs", "--json"]).expect_code(0).json();
    let run = listed["runs"].as_array().unwrap().last().expect("a run is on record");
    run["run"].as_str().unwrap().to_owned()
}

#[test]
fn a_driver_that_dies_at_a_crashpoint_leaves_an_outcome_and_nothing_else() {
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
    for provider in PROVIDERS {
        let fixture = RunFixture::set(provider);
        for point in points {
            let run = die_at(&fixture, point);
            let test_run = TestRun { fixture: &fixture, run, driver: None };
            let (shown, what) = (test_run.show(), format!("{} in {provider}", point.name()));
            assert_eq!(shown["phase"], "failed", "{what}: {shown:#}");
            assert_eq!(classes(&shown), ["hub_error"], "{what}: {shown:#}");
            assert_eq!(shown["certificate"]["verified"], true, "{what}: {shown:#}");
            test_run.assert_events_whole();
            fixture.assert_nothing_left();
        }
    }
}

#[test]
fn an_internal_error_during_a_turn_is_reported_as_ours_and_nothing_is_left() {
    for provider in PROVIDERS {
        let mut fixture = RunFixture::set(provider);
        fixture.plant("panic");
        let (mark, sleep) = (fixture.home.path("mark"), unique_sleep());
        let point = Crashpoint::TurnSentNotConfirmed;
        let armed =
            fixture.home.creel.clone().env("CREEL_CRASHPOINT", format!("{}:panic", point.name()));
        let armed = armed.env("CREEL_CRASHPOINT_MARK", &mark);
        let path = fixture.workflow("10m", &Moment::Turn.workflow(&sleep));
        let ended = armed.run(["run".as_ref(), "--json".as_ref(), path.as_os_str()]);
        let shown = ended.expect_code(5).json();
        assert_eq!(text_of(&mark), point.name(), "it did not get there");
        assert_eq!(classes(&shown), ["hub_error"], "{provider}: {shown:#}");
        assert_ended(&provider.to_string(), &shown, &sleep);
        fixture.assert_nothing_left();
        fixture.assert_foreign_untouched();
    }
}

/// Kills the driver of a background run at every moment, and resumes the run.
fn resume_in(provider: ProviderName) {
    let fixture = RunFixture::set(provider);
    for moment in Moment::ALL {
        let (sleep, what) = (short_sleep(), format!("{moment:?} in {provider}"));
        let mut test_run = fixture.detach("10m", &moment.workflow(&sleep));
        test_run.await_moment(moment, &sleep);
        test_run.kill_driver();
        let body = test_run.body();
        let resumed = fixture.home.creel.spawn(["resume", &test_run.run, "--json"]);
        test_run.driver = Some(resumed);
        if moment == Moment::Question {
            test_run.await_owner();
            fixture.home.creel.run(["message", &test_run.run, "yes"]).expect_code(0);
        }
        let shown = test_run.await_end();
        assert_eq!(shown["phase"], "succeeded", "{what}: {shown:#}\n{}", test_run.stderr());
        assert_ended(&what, &shown, &sleep);
        let output = match moment {
            Moment::Question => "one\nyes\ntwo\n",
            Moment::Pause => "one\none\n",
            Moment::Setup | Moment::Turn | Moment::Teardown => "one\ntwo\n",
        };
        assert_eq!(test_run.output(), output, "{what}: {:#?}", test_run.events());
        test_run.assert_events_whole();
        let is_it = |record: &Value| record["resource"] == body["resource"];
        let bodies = fixture.home.records().into_iter().filter(is_it).count();
        assert_eq!(bodies, 1, "{what}: it went on in another sandbox");
        test_run.conclude(0);
        fixture.assert_nothing_left();
    }
}

#[test]
fn a_background_run_in_a_process_tree_is_resumed_from_any_moment() {
    resume_in(creel_process::NAME);
}

#[test]
fn a_background_run_in_a_container_is_resumed_from_any_moment() {
    resume_in(creel_docker::NAME);
}

#[test]
fn a_background_run_in_a_cloud_sandbox_is_resumed_from_any_moment() {
    resume_in(creel_daytona::NAME);
}

#[test]
fn a_background_run_that_is_not_resumed_ends_with_its_lease() {
    for provider in PROVIDERS {
        let fixture = RunFixture::set(provider);
        let sleep = unique_sleep();
        let mut test_run = fixture.detach("6s", &Moment::Turn.workflow(&sleep));
        test_run.await_moment(Moment::Turn, &sleep);
        test_run.kill_driver();
        fixture.home.creel.run(["reconcile"]).expect_code(0);
        assert_eq!(test_run.show()["phase"], "running", "the lease had not ended");
        assert_eq!(test_run.body()["state"], "created");
        let closed = eventually(PATIENCE, || {
            fixture.home.creel.run(["reconcile"]);
            test_run.show()["phase"] == "failed"
        });
        let shown = test_run.show();
        assert!(closed, "{shown:#}");
        assert_eq!(classes(&shown), ["lease_expired"], "{shown:#}");
        assert_ended(&provider.to_string(), &shown, &sleep);
        fixture.assert_nothing_left();
    }
}

#[test]
fn a_background_run_whose_driver_died_is_ended_by_cancel_at_once() {
    for provider in PROVIDERS {
        let fixture = RunFixture::set(provider);
        let sleep = unique_sleep();
        let mut test_run = fixture.detach("10m", &Moment::Turn.workflow(&sleep));
        test_run.await_moment(Moment::Turn, &sleep);
        test_run.kill_driver();
        fixture.home.creel.run(["cancel", &test_run.run]).expect_code(0);
        let shown = test_run.show();
        assert_eq!((&shown["phase"], classes(&shown)), (&"cancelled".into(), vec!["cancelled"]));
        assert_ended(&provider.to_string(), &shown, &sleep);
        fixture.assert_nothing_left();
    }
}
