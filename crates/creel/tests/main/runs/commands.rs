//! Commands of users to a run, and its limits: each has its own cause, and every run
//! ends with the teardown and an empty certificate.

use creel_testkit::wait::eventually;
use serde_json::Value;

use crate::support::PATIENCE;

use super::run_fixture::{
    Moment, RunFixture, TestRun, agent, agent_twice, classes, processes_of, unique_sleep,
};

/// A teardown with a quick step and a failing one.
const TEARDOWN: &str = "[[teardown]]\nname = \"tidy\"\nrun = \"true\"\n\
                        [[teardown]]\nname = \"fail\"\nrun = \"exit 9\"\n";

fn fixture() -> RunFixture {
    RunFixture::set(creel_process::NAME)
}

/// Returns the teardown steps that ran, with their findings.
fn teardown_of(test_run: &TestRun<'_>) -> Vec<String> {
    let events = test_run.events();
    let ended = events.iter().filter(|event| event["event"] == "teardown_ended");
    ended
        .map(|event| {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            format!("{}: {}", text("name"), text("found"))
        })
        .collect()
}

/// Asserts that a run ended for one cause, after its teardown, with nothing left.
#[track_caller]
fn assert_ended_by(test_run: &TestRun<'_>, class: &str) -> Value {
    let shown = test_run.await_end();
    assert_eq!(classes(&shown), [class], "{shown:#}");
    assert_eq!(shown["certificate"]["verified"], true, "{shown:#}");
    assert_eq!(teardown_of(test_run), ["tidy: it succeeded", "fail: exit code 9"]);
    test_run.fixture.assert_nothing_left();
    shown
}

#[test]
fn a_signal_cancels_the_run_and_releases_everything() {
    let fixture = fixture();
    for signal in ["INT", "TERM", "HUP"] {
        let sleep = unique_sleep();
        let test_run =
            fixture.start("10m", &format!("{}{TEARDOWN}", Moment::Turn.workflow(&sleep)));
        test_run.await_moment(Moment::Turn, &sleep);
        test_run.driver.as_ref().unwrap().signal(signal);
        let shown = assert_ended_by(&test_run, "cancelled");
        assert_eq!(shown["phase"], "cancelled");
        assert!(
            test_run.stderr().contains("interrupted: releasing everything"),
            "{}",
            test_run.stderr()
        );
        test_run.conclude(6);
        assert!(processes_of(&sleep).is_empty());
    }
}

#[test]
fn output_of_an_agent_during_its_shutdown_is_recorded() {
    let fixture = fixture();
    let script = "trap 'echo last words; exit 0' TERM; echo first; while :; do sleep 0.1; done";
    let test_run = fixture.start("10m", &format!("{}{TEARDOWN}", agent(script)));
    test_run.await_output("first");
    fixture.home.creel.run(["cancel", &test_run.run]).expect_code(0);
    assert_ended_by(&test_run, "cancelled");
    assert_eq!(test_run.output(), "first\nlast words\n", "{:#?}", test_run.events());
    assert!(test_run.events().iter().any(|event| event["event"] == "turn_ended"));
    test_run.assert_events_whole();
    test_run.conclude(6);
}

#[test]
fn a_second_signal_leaves_cleanup_to_the_watchdog() {
    let fixture = fixture();
    let (sleep, teardown) = (unique_sleep(), unique_sleep());
    let body = format!(
        "{}[[teardown]]\nname = \"slow\"\nrun = \"{teardown}\"\ntimeout = \"10m\"\n",
        Moment::Turn.workflow(&sleep)
    );
    let mut test_run = fixture.start("10m", &body);
    test_run.await_moment(Moment::Turn, &sleep);
    test_run.driver.as_ref().unwrap().signal("INT");
    test_run.await_moment(Moment::Teardown, &teardown);
    test_run.driver.as_ref().unwrap().signal("INT");
    test_run.driver.take().unwrap().wait().expect_code(130);
    let shown = test_run.await_end();
    assert_eq!((&shown["phase"], classes(&shown)), (&"cancelled".into(), vec!["cancelled"]));
    assert_eq!(shown["certificate"]["verified"], true);
    fixture.home.await_quiet();
    assert!(processes_of(&teardown).is_empty());
    fixture.assert_nothing_left();
}

#[test]
fn a_cancel_from_another_process_ends_the_run_in_every_phase() {
    let fixture = fixture();
    for moment in [Moment::Setup, Moment::Turn, Moment::Question, Moment::Pause] {
        let sleep = unique_sleep();
        let test_run = fixture.start("10m", &format!("{}{TEARDOWN}", moment.workflow(&sleep)));
        test_run.await_moment(moment, &sleep);
        fixture.home.creel.run(["cancel", &test_run.run]).expect_code(0);
        assert_ended_by(&test_run, "cancelled");
        test_run.conclude(6);
    }
}

#[test]
fn limits_end_a_run_and_are_reported() {
    let fixture = fixture();
    let cases = [
        ("wall = \"3s\"", "budget_exceeded", "limits.wall = 3s was reached"),
        ("turn = \"1s\"", "budget_exceeded", "limits.turn was reached"),
        ("idle = \"1s\"", "no_progress", "limits.idle"),
    ];
    for (limit, class, message) in cases {
        let sleep = unique_sleep();
        let workflow = Moment::Turn.workflow(&sleep);
        let test_run = fixture.start("10m", &format!("{workflow}[limits]\n{limit}\n{TEARDOWN}"));
        let shown = assert_ended_by(&test_run, class);
        let shown_message = shown["cause"]["message"].as_str().unwrap();
        assert!(shown_message.contains(message), "{shown_message}");
        test_run.conclude(5);
        assert!(processes_of(&sleep).is_empty(), "{limit}");
    }
    let body = format!("{}[limits]\nturns = 1\n{TEARDOWN}", agent_twice("echo one", "two"));
    let test_run = fixture.start("10m", &body);
    assert_ended_by(&test_run, "budget_exceeded");
    assert_eq!(test_run.output(), "one\n");
    test_run.conclude(5);
}

#[test]
fn a_hanging_teardown_is_cut_and_does_not_change_the_outcome() {
    let fixture = fixture();
    let sleep = unique_sleep();
    let body = format!(
        "{}[[teardown]]\nname = \"hang\"\nrun = \"{sleep}\"\ntimeout = \"1s\"\n{TEARDOWN}",
        agent("echo one")
    );
    let test_run = fixture.start("10m", &body);
    let shown = test_run.await_end();
    assert_eq!((&shown["phase"], &shown["cause"]), (&"succeeded".into(), &Value::Null));
    let ran = ["hang: killed at its time limit", "tidy: it succeeded", "fail: exit code 9"];
    assert_eq!(teardown_of(&test_run), ran);
    assert!(processes_of(&sleep).is_empty());
    test_run.conclude(0);
    fixture.assert_nothing_left();
}

#[test]
fn a_question_is_answered_by_a_message() {
    let fixture = fixture();
    let test_run = fixture.start("10m", &Moment::Question.workflow(""));
    test_run.await_phase("awaiting_input");
    assert!(eventually(PATIENCE, || test_run.stderr().contains("the agent asks: May I?")));
    fixture.home.creel.run(["message", "last", "yes"]).expect_code(0);
    assert_eq!(test_run.await_end()["phase"], "succeeded");
    assert_eq!(test_run.output(), "one\nyes\ntwo\n");
    test_run.conclude(0);
}

#[test]
fn an_unanswered_question_or_pause_ends_with_the_lease() {
    let fixture = fixture();
    for moment in [Moment::Question, Moment::Pause] {
        let test_run = fixture.start("6s", &format!("{}{TEARDOWN}", moment.workflow("")));
        test_run.await_phase(moment.phase());
        let shown = assert_ended_by(&test_run, "lease_expired");
        assert_eq!(shown["phase"], "failed");
        test_run.conclude(5);
    }
}

#[test]
fn a_pause_is_ended_only_by_resume() {
    let fixture = fixture();
    let test_run = fixture.start("10m", &Moment::Pause.workflow(""));
    test_run.await_phase("paused");
    // A message waits for its turn, which the pause delays.
    fixture.home.creel.run(["message", &test_run.run, "more"]).expect_code(0);
    assert_eq!(test_run.show()["phase"], "paused");
    fixture.home.creel.run(["resume", &test_run.run]).expect_code(0);
    let second = eventually(PATIENCE, || test_run.output() == "one\none\n");
    assert!(second, "{:#?}", test_run.events());
    // The rule pauses the run after every turn, as long as there are more.
    test_run.await_phase("paused");
    fixture.home.creel.run(["resume", &test_run.run]).expect_code(0);
    assert_eq!(test_run.await_end()["phase"], "succeeded");
    assert_eq!(test_run.output(), "one\none\none\n");
    test_run.conclude(0);
    fixture.assert_nothing_left();
}

#[test]
fn a_message_while_the_agent_works_becomes_another_turn() {
    let fixture = fixture();
    let gate = fixture.home.path("gate");
    let script = format!("cat; echo; until [ -e {} ]; do sleep 0.1; done", gate.display());
    let test_run = fixture.start("10m", &agent(&script));
    test_run.await_output("go");
    fixture.home.creel.run(["message", &test_run.run, "and this"]).expect_code(0);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(test_run.await_end()["phase"], "succeeded");
    assert_eq!(test_run.output(), "go\nand this\n");
    test_run.assert_events_whole();
    test_run.conclude(0);
}

#[test]
fn another_attempt_is_refused_if_it_cannot_help() {
    let fixture = fixture();
    fixture.run(0, &agent("echo one"));
    let refused = fixture.home.creel.run(["retry", "last"]).expect_code(4);
    assert!(refused.stderr.contains("the run succeeded"), "{refused}");
    fixture.run(5, &format!("{}[limits]\nturns = 1\n", agent_twice("echo one", "two")));
    let refused = fixture.home.creel.run(["retry", "last"]).expect_code(4);
    assert!(refused.stderr.contains("budget_exceeded does not go away by itself"), "{refused}");
    assert!(refused.stderr.contains("--force"), "{refused}");
    fixture.run(5, &agent("exit 1"));
    let refused = fixture.home.creel.run(["retry", "last", "--from", "bootstrap"]).expect_code(4);
    assert!(refused.stderr.contains("was released"), "{refused}");
    let sleep = unique_sleep();
    let test_run = fixture.start("10m", &Moment::Turn.workflow(&sleep));
    test_run.await_moment(Moment::Turn, &sleep);
    let refused = fixture.home.creel.run(["retry", &test_run.run]).expect_code(4);
    assert!(refused.stderr.contains("the run is still running"), "{refused}");
    fixture.home.creel.run(["cancel", &test_run.run]).expect_code(0);
    test_run.conclude(6);
    fixture.assert_nothing_left();
}

#[test]
fn another_attempt_begins_from_scratch_and_keeps_the_first_cause_of_each() {
    let fixture = fixture();
    let gate = fixture.home.path("gate");
    let failed = fixture.run(5, &agent(&format!("test -e {}", gate.display())));
    assert_eq!(classes(&failed), ["agent_crashed"]);
    std::fs::write(&gate, "").unwrap();
    let again = fixture.home.creel.run(["retry", "last", "--json"]).expect_code(0).json();
    assert_eq!((&again["attempt"], &again["phase"]), (&2.into(), &"succeeded".into()));
    assert_eq!((&again["cause"], classes(&again)), (&Value::Null, vec!["agent_crashed"]));
    fixture.assert_nothing_left();
}
