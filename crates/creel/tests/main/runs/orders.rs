//! What people ask of a run, and what its limits do to it: each has its cause, and all of them
//! end with the teardown and an empty certificate.

use creel_model::provider::ProviderName;
use creel_testkit::wait::eventually;
use serde_json::Value;

use crate::support::PATIENCE;

use super::stage::{Cell, Moment, Stage, agent, agent_twice, classes, processes_of, unique_sleep};

/// A teardown that is quick, and one that fails.
const TEARDOWN: &str = "[[teardown]]\nname = \"tidy\"\nrun = \"true\"\n\
                        [[teardown]]\nname = \"fail\"\nrun = \"exit 9\"\n";

fn stage() -> Stage {
    Stage::set(ProviderName::Process)
}

/// Returns which steps of the teardown ran, with what was found of them.
fn teardown_of(cell: &Cell<'_>) -> Vec<String> {
    let events = cell.events();
    let ended = events.iter().filter(|event| event["event"] == "teardown_ended");
    ended
        .map(|event| {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            format!("{}: {}", text("name"), text("found"))
        })
        .collect()
}

/// Checks that a run ended for one cause, after its teardown, with nothing left.
#[track_caller]
fn assert_ended_by(cell: &Cell<'_>, class: &str) -> Value {
    let shown = cell.await_end();
    assert_eq!(classes(&shown), [class], "{shown:#}");
    assert_eq!(shown["certificate"]["verified"], true, "{shown:#}");
    assert_eq!(teardown_of(cell), ["tidy: it succeeded", "fail: exit code 9"]);
    cell.stage.assert_nothing_left();
    shown
}

#[test]
fn a_signal_cancels_the_run_and_gives_everything_back() {
    let stage = stage();
    for signal in ["INT", "TERM", "HUP"] {
        let sleep = unique_sleep();
        let cell = stage.start("10m", &format!("{}{TEARDOWN}", Moment::Turn.workflow(&sleep)));
        cell.await_moment(Moment::Turn, &sleep);
        cell.driver.as_ref().unwrap().signal(signal);
        let shown = assert_ended_by(&cell, "cancelled");
        assert_eq!(shown["phase"], "cancelled");
        assert!(cell.said().contains("interrupted: giving everything back"), "{}", cell.said());
        cell.conclude(6);
        assert!(processes_of(&sleep).is_empty());
    }
}

#[test]
fn what_an_agent_says_while_it_is_being_ended_is_on_record() {
    let stage = stage();
    let script = "trap 'echo last words; exit 0' TERM; echo first; while :; do sleep 0.1; done";
    let cell = stage.start("10m", &format!("{}{TEARDOWN}", agent(script)));
    cell.await_words("first");
    stage.home.creel.run(["cancel", &cell.run]).expect_code(0);
    assert_ended_by(&cell, "cancelled");
    assert_eq!(cell.words(), "first\nlast words\n", "{:#?}", cell.events());
    assert!(cell.events().iter().any(|event| event["event"] == "turn_ended"));
    cell.assert_events_whole();
    cell.conclude(6);
}

#[test]
fn a_second_signal_leaves_the_rest_to_the_watchdog() {
    let stage = stage();
    let (sleep, teardown) = (unique_sleep(), unique_sleep());
    let body = format!(
        "{}[[teardown]]\nname = \"slow\"\nrun = \"{teardown}\"\ntimeout = \"10m\"\n",
        Moment::Turn.workflow(&sleep)
    );
    let mut cell = stage.start("10m", &body);
    cell.await_moment(Moment::Turn, &sleep);
    cell.driver.as_ref().unwrap().signal("INT");
    cell.await_moment(Moment::Teardown, &teardown);
    cell.driver.as_ref().unwrap().signal("INT");
    cell.driver.take().unwrap().wait().expect_code(130);
    let shown = cell.await_end();
    assert_eq!((&shown["phase"], classes(&shown)), (&"cancelled".into(), vec!["cancelled"]));
    assert_eq!(shown["certificate"]["verified"], true);
    stage.home.await_quiet();
    assert!(processes_of(&teardown).is_empty());
    stage.assert_nothing_left();
}

#[test]
fn a_cancel_of_another_process_ends_the_run_in_every_phase() {
    let stage = stage();
    for moment in [Moment::Setup, Moment::Turn, Moment::Question, Moment::Pause] {
        let sleep = unique_sleep();
        let cell = stage.start("10m", &format!("{}{TEARDOWN}", moment.workflow(&sleep)));
        cell.await_moment(moment, &sleep);
        stage.home.creel.run(["cancel", &cell.run]).expect_code(0);
        assert_ended_by(&cell, "cancelled");
        cell.conclude(6);
    }
}

#[test]
fn limits_end_a_run_and_are_named() {
    let stage = stage();
    let cases = [
        ("wall = \"3s\"", "budget_exceeded", "limits.wall = 3s was reached"),
        ("turn = \"1s\"", "budget_exceeded", "limits.turn was reached"),
        ("idle = \"1s\"", "no_progress", "limits.idle"),
    ];
    for (limit, class, message) in cases {
        let sleep = unique_sleep();
        let workflow = Moment::Turn.workflow(&sleep);
        let cell = stage.start("10m", &format!("{workflow}[limits]\n{limit}\n{TEARDOWN}"));
        let shown = assert_ended_by(&cell, class);
        let told = shown["cause"]["message"].as_str().unwrap();
        assert!(told.contains(message), "{told}");
        cell.conclude(5);
        assert!(processes_of(&sleep).is_empty(), "{limit}");
    }
    let body = format!("{}[limits]\nturns = 1\n{TEARDOWN}", agent_twice("echo one", "two"));
    let cell = stage.start("10m", &body);
    assert_ended_by(&cell, "budget_exceeded");
    assert_eq!(cell.words(), "one\n");
    cell.conclude(5);
}

#[test]
fn a_teardown_that_hangs_is_cut_and_changes_nothing() {
    let stage = stage();
    let sleep = unique_sleep();
    let body = format!(
        "{}[[teardown]]\nname = \"hang\"\nrun = \"{sleep}\"\ntimeout = \"1s\"\n{TEARDOWN}",
        agent("echo one")
    );
    let cell = stage.start("10m", &body);
    let shown = cell.await_end();
    assert_eq!((&shown["phase"], &shown["cause"]), (&"succeeded".into(), &Value::Null));
    let ran = ["hang: killed at its time limit", "tidy: it succeeded", "fail: exit code 9"];
    assert_eq!(teardown_of(&cell), ran);
    assert!(processes_of(&sleep).is_empty());
    cell.conclude(0);
    stage.assert_nothing_left();
}

#[test]
fn a_question_is_answered_by_a_message() {
    let stage = stage();
    let cell = stage.start("10m", &Moment::Question.workflow(""));
    cell.await_phase("awaiting_input");
    assert!(eventually(PATIENCE, || cell.said().contains("the agent asks: May I?")));
    stage.home.creel.run(["message", "last", "yes"]).expect_code(0);
    assert_eq!(cell.await_end()["phase"], "succeeded");
    assert_eq!(cell.words(), "one\nyes\ntwo\n");
    cell.conclude(0);
}

#[test]
fn a_question_or_a_pause_that_nobody_ends_is_ended_by_the_lease() {
    let stage = stage();
    for moment in [Moment::Question, Moment::Pause] {
        let cell = stage.start("6s", &format!("{}{TEARDOWN}", moment.workflow("")));
        cell.await_phase(moment.phase());
        let shown = assert_ended_by(&cell, "lease_expired");
        assert_eq!(shown["phase"], "failed");
        cell.conclude(5);
    }
}

#[test]
fn a_pause_is_ended_by_resume_and_by_nothing_else() {
    let stage = stage();
    let cell = stage.start("10m", &Moment::Pause.workflow(""));
    cell.await_phase("paused");
    // A message waits for its turn, which the pause holds.
    stage.home.creel.run(["message", &cell.run, "more"]).expect_code(0);
    assert_eq!(cell.show()["phase"], "paused");
    stage.home.creel.run(["resume", &cell.run]).expect_code(0);
    let second = eventually(PATIENCE, || cell.words() == "one\none\n");
    assert!(second, "{:#?}", cell.events());
    // The rule holds it after every turn, as long as there is more to say.
    cell.await_phase("paused");
    stage.home.creel.run(["resume", &cell.run]).expect_code(0);
    assert_eq!(cell.await_end()["phase"], "succeeded");
    assert_eq!(cell.words(), "one\none\none\n");
    cell.conclude(0);
    stage.assert_nothing_left();
}

#[test]
fn a_message_while_the_agent_works_becomes_another_turn() {
    let stage = stage();
    let gate = stage.home.path("gate");
    let script = format!("cat; echo; until [ -e {} ]; do sleep 0.1; done", gate.display());
    let cell = stage.start("10m", &agent(&script));
    cell.await_words("go");
    stage.home.creel.run(["message", &cell.run, "and this"]).expect_code(0);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(cell.await_end()["phase"], "succeeded");
    assert_eq!(cell.words(), "go\nand this\n");
    cell.assert_events_whole();
    cell.conclude(0);
}

#[test]
fn another_attempt_is_refused_where_it_cannot_help() {
    let stage = stage();
    stage.run(0, &agent("echo one"));
    let refused = stage.home.creel.run(["retry", "last"]).expect_code(4);
    assert!(refused.stderr.contains("the run succeeded"), "{refused}");
    stage.run(5, &format!("{}[limits]\nturns = 1\n", agent_twice("echo one", "two")));
    let refused = stage.home.creel.run(["retry", "last"]).expect_code(4);
    assert!(refused.stderr.contains("budget_exceeded does not go away by itself"), "{refused}");
    assert!(refused.stderr.contains("--force"), "{refused}");
    stage.run(5, &agent("exit 1"));
    let refused = stage.home.creel.run(["retry", "last", "--from", "bootstrap"]).expect_code(4);
    assert!(refused.stderr.contains("was released"), "{refused}");
    let sleep = unique_sleep();
    let cell = stage.start("10m", &Moment::Turn.workflow(&sleep));
    cell.await_moment(Moment::Turn, &sleep);
    let refused = stage.home.creel.run(["retry", &cell.run]).expect_code(4);
    assert!(refused.stderr.contains("the run is still running"), "{refused}");
    stage.home.creel.run(["cancel", &cell.run]).expect_code(0);
    cell.conclude(6);
    stage.assert_nothing_left();
}

#[test]
fn another_attempt_begins_from_scratch_and_keeps_the_first_cause_of_each() {
    let stage = stage();
    let gate = stage.home.path("gate");
    let failed = stage.run(5, &agent(&format!("test -e {}", gate.display())));
    assert_eq!(classes(&failed), ["agent_crashed"]);
    std::fs::write(&gate, "").unwrap();
    let again = stage.home.creel.run(["retry", "last", "--json"]).expect_code(0).json();
    assert_eq!((&again["attempt"], &again["phase"]), (&2.into(), &"succeeded".into()));
    assert_eq!((&again["cause"], classes(&again)), (&Value::Null, vec!["agent_crashed"]));
    stage.assert_nothing_left();
}
