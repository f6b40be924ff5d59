//! `serve`: turns, commands, questions, ends.

use std::fs;
use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::exec::ExecEnding;
use creel_bridge::serve::{BridgeCommand, Sign};
use rustix::process::Signal;

use crate::bridge::Bridge;
use crate::support::{
    ExecReport, is_alive, line, pid_in, program, script, signal, start, throughout, until,
};

#[test]
fn a_turn_is_reported_from_start_to_end() {
    let bridge = Bridge::start("cat; echo \"$SECRET\" >&2; pwd; exit 3");
    bridge.turn("first", "Say ☃\n");
    let log = bridge.log_after_turn(1);
    log.assert_whole();
    let workspace = bridge.home.path().canonicalize().unwrap();
    assert_eq!(log.text_of(1, Stream::Output), format!("Say ☃\n{}\n", workspace.display()));
    assert_eq!(log.text_of(1, Stream::Error), "hush\n");
    assert_eq!(log.ending_of(1), Some(TurnEnding::Exited { code: 3 }));
    assert!(matches!(log.events[0].1, BridgeEvent::BridgeStarted { .. }));
    assert_eq!(log.events[1].1, BridgeEvent::RuntimeReady { version: None });
    assert_eq!(log.events[2].1, BridgeEvent::CommandTaken { key: "first".to_owned() });
    let started = BridgeEvent::TurnStarted { turn: 1, attempt: 1, model: None };
    assert_eq!(log.events[3].1, started);
    bridge.stop();
    let log = bridge.log();
    let reason = "it was asked to stop".to_owned();
    assert_eq!(log.events.last().unwrap().1, BridgeEvent::RuntimeEnded { reason });
    assert_eq!(log.signs, [Sign::Ended { newest: log.events.len() as u64 }]);
}

#[test]
fn a_bridge_outlives_the_command_that_started_it_even_one_that_is_killed() {
    let bridge = Bridge::prepare("cat");
    let request = String::from_utf8(line(&bridge.request)).unwrap();
    let serve = format!("\"$PROGRAM\" serve <<'END'\n{request}END\nsleep 100");
    let mut request = script(&serve);
    request.limit_ms = 2000;
    let itself = env!("CARGO_BIN_EXE_creel-bridge").to_owned();
    request.env.insert("PROGRAM".to_owned(), itself);
    let mut exec = start(&["exec"], &line(&request));
    assert_eq!(ExecReport::read(exec.stdout.take().unwrap()).ending(), ExecEnding::TimedOut);
    exec.wait().unwrap();
    bridge.turn("1", "still here");
    assert_eq!(bridge.log_after_turn(1).text_of(1, Stream::Output), "still here");
    bridge.stop();
}

#[test]
fn starting_a_bridge_twice_returns_the_first() {
    let bridge = Bridge::start("cat");
    let pid = bridge.pid();
    assert_eq!(bridge.serve(), 2);
    assert_eq!(bridge.pid(), pid);
    bridge.stop();
}

#[test]
fn a_bridge_that_cannot_start_reports_why() {
    let bridge = Bridge::prepare("cat");
    fs::create_dir_all(bridge.path("spool/00000000000000000001.frames")).unwrap();
    let mut serve = start(&["serve"], &line(&bridge.request));
    assert_eq!(serve.wait().unwrap().code(), Some(1));
    let log = fs::read_to_string(bridge.path("log")).unwrap();
    assert!(log.starts_with("creel-bridge: cannot open the spool: "), "{log}");
}

#[test]
fn turns_run_one_after_the_other() {
    let bridge = Bridge::start("cat; sleep 0.1");
    for turn in 1..=4 {
        let key = format!("key-{turn}");
        bridge.turn(&key, &format!("prompt {turn}"));
        bridge.log_when("the command to be taken", |log| log.taken(&key) == 1);
    }
    let log = bridge.log_after_turn(4);
    for turn in 1..=4 {
        assert_eq!(log.text_of(turn, Stream::Output), format!("prompt {turn}"));
        assert_eq!(log.taken(&format!("key-{turn}")), 1);
    }
    bridge.stop();
}

#[test]
fn a_repeated_command_is_taken_once() {
    let bridge = Bridge::start("cat");
    bridge.turn("once", "first");
    bridge.log_after_turn(1);
    bridge.turn("once", "again");
    until("the second file to go", || !bridge.path("commands/once.json").exists());
    bridge.kill();
    bridge.serve();
    bridge.turn("once", "and again");
    bridge.turn("other", "other");
    let log = bridge.log_after_turn(2);
    assert_eq!((log.taken("once"), log.taken("other")), (1, 1));
    assert_eq!(log.text_of(2, Stream::Output), "other");
    bridge.stop();
}

#[test]
fn a_command_that_is_still_being_written_waits_until_it_is_whole() {
    let bridge = Bridge::start("cat");
    let turn = BridgeCommand::Turn { prompt: "whole".to_owned(), limit_ms: 9000, silence_ms: None };
    let text = serde_json::to_vec(&turn).unwrap();
    fs::write(bridge.path("commands/slow.json"), &text[..20]).unwrap();
    bridge.run(&["poke"]);
    // Its commands were read until this one was carried out.
    bridge.turn("later", "later");
    assert_eq!(bridge.log_after_turn(1).taken("slow"), 0);
    fs::write(bridge.path("commands/slow.json"), &text).unwrap();
    assert_eq!(bridge.log_after_turn(2).text_of(2, Stream::Output), "whole");
    bridge.stop();
}

#[test]
fn a_turn_is_killed_at_its_time_and_silence_limits() {
    let bridge = Bridge::start("echo on; sleep 100");
    let prompt = String::new();
    bridge.send(
        "limit",
        &BridgeCommand::Turn { prompt: prompt.clone(), limit_ms: 300, silence_ms: None },
    );
    assert_eq!(bridge.log_after_turn(1).ending_of(1), Some(TurnEnding::TimedOut));
    bridge
        .send("silence", &BridgeCommand::Turn { prompt, limit_ms: 60_000, silence_ms: Some(300) });
    let log = bridge.log_after_turn(2);
    assert_eq!(log.ending_of(2), Some(TurnEnding::Silent));
    assert_eq!(log.text_of(2, Stream::Output), "on\n");
    bridge.stop();
}

#[test]
fn cancelling_ends_the_turn_and_drops_queued_turns() {
    let bridge = Bridge::start("echo $$ > pid; sleep 100");
    bridge.turn("1", "");
    let command = pid_in(&bridge.home.path().join("pid"));
    bridge.turn("2", "");
    std::thread::sleep(Duration::from_millis(5));
    bridge.send("cancel", &BridgeCommand::Cancel);
    let log = bridge.log_after_turn(1);
    assert_eq!(log.ending_of(1), Some(TurnEnding::Cancelled));
    assert!(!is_alive(command));
    bridge.stop();
    let log = bridge.log();
    assert_eq!((log.taken("2"), log.taken("cancel")), (1, 1));
    let is_second = |event: &BridgeEvent| matches!(event, BridgeEvent::TurnStarted { turn: 2, .. });
    assert!(!log.events.iter().any(|(_, event)| is_second(event)));
}

#[test]
fn stopping_gives_the_program_time_to_end() {
    let bridge = Bridge::start("trap 'echo bye; exit 5' TERM; echo on; sleep 100 & wait");
    bridge.turn("1", "");
    bridge.log_when("the first output", |log| log.text_of(1, Stream::Output) == "on\n");
    bridge.send("stop", &BridgeCommand::Stop { grace_ms: 20_000 });
    until("the end of the bridge", || !bridge.is_served());
    let log = bridge.log();
    assert_eq!(log.text_of(1, Stream::Output), "on\nbye\n");
    assert_eq!(log.ending_of(1), Some(TurnEnding::Exited { code: 5 }));
    assert_eq!(log.taken("stop"), 1);
}

#[test]
fn stopping_kills_a_program_that_ignores_sigterm() {
    let bridge = Bridge::start(
        "trap '' TERM; setsid sh -c 'echo $$ > daemon; exec sleep 1000' & \
         echo $$ > pid; sleep 1000",
    );
    bridge.turn("1", "");
    let pids = ["pid", "daemon"].map(|name| pid_in(&bridge.home.path().join(name)));
    bridge.send("stop", &BridgeCommand::Stop { grace_ms: 100 });
    until("the end of the bridge", || !bridge.is_served());
    assert_eq!(bridge.log().ending_of(1), Some(TurnEnding::Cancelled));
    assert!(!pids.into_iter().any(is_alive));
}

#[test]
fn a_bridge_that_receives_sigterm_reports_its_end() {
    let bridge = Bridge::start("sleep 0.5; echo done");
    bridge.turn("1", "");
    bridge.log_when("the turn", |log| log.taken("1") == 1);
    signal(bridge.pid(), Signal::TERM);
    until("the end of the bridge", || !bridge.is_served());
    let log = bridge.log();
    assert_eq!(log.ending_of(1), Some(TurnEnding::Exited { code: 0 }));
    let reason = "the sandbox ends".to_owned();
    assert_eq!(log.events.last().unwrap().1, BridgeEvent::RuntimeEnded { reason });
}

#[test]
fn a_bridge_ends_without_a_sign_of_life_of_the_supervisor() {
    let mut bridge = Bridge::prepare("echo $$ > pid; sleep 1000");
    bridge.request.lease_ms = 1500;
    bridge.serve();
    bridge.turn("1", "");
    let command = pid_in(&bridge.home.path().join("pid"));
    throughout("each poke renews the lease", Duration::from_secs(2), || {
        bridge.run(&["poke"]);
        bridge.is_served() && is_alive(command)
    });
    until("the end of the lease", || !bridge.is_served());
    assert!(!is_alive(command));
    let last = bridge.log().events.pop().unwrap().1;
    let reason = "no message from the supervisor for 1 s".to_owned();
    assert_eq!(last, BridgeEvent::RuntimeEnded { reason });
}

#[test]
fn a_running_tail_renews_the_lease() {
    let mut bridge = Bridge::prepare("cat");
    bridge.request.lease_ms = 1000;
    bridge.serve();
    let mut tail = bridge.follow(1);
    throughout("the tail renews the lease", Duration::from_millis(2500), || bridge.is_served());
    tail.kill().unwrap();
    tail.wait().unwrap();
    until("the end of the lease", || !bridge.is_served());
}

#[test]
fn a_program_receives_its_answer_while_the_clocks_pause() {
    let bridge = Bridge::start("answer=$(\"$CREEL_BRIDGE\" ask 'May I?'); echo \"<$answer>\"");
    let prompt = String::new();
    bridge.send("1", &BridgeCommand::Turn { prompt, limit_ms: 1000, silence_ms: Some(500) });
    let log = bridge.log_when("the question", |log| !log.requests().is_empty());
    let (request, question) = log.requests().remove(0);
    assert_eq!(question, "May I?");
    throughout("the turn waits", Duration::from_millis(1500), || {
        bridge.log().ending_of(1).is_none()
    });
    bridge
        .send("yes", &BridgeCommand::Answer { request: request.clone(), text: "yes ☃".to_owned() });
    let log = bridge.log_after_turn(1);
    assert_eq!(log.text_of(1, Stream::Output), "<yes ☃>\n");
    assert_eq!(log.ending_of(1), Some(TurnEnding::Exited { code: 0 }));
    let given = BridgeEvent::InputGiven { request };
    assert_eq!(log.events.iter().filter(|(_, event)| *event == given).count(), 1);
    bridge.stop();
}

#[test]
fn an_abandoned_question_does_not_pause_the_clocks() {
    let bridge = Bridge::start("timeout 0.5 \"$CREEL_BRIDGE\" ask 'Anybody?'; sleep 1000");
    let prompt = String::new();
    bridge.send("1", &BridgeCommand::Turn { prompt, limit_ms: 1500, silence_ms: None });
    let log = bridge.log_after_turn(1);
    assert_eq!((log.requests().len(), log.ending_of(1)), (1, Some(TurnEnding::TimedOut)));
    bridge.stop();
}

#[test]
fn a_question_without_a_bridge_fails_with_a_message() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("questions")).unwrap();
    let output =
        program(&["ask", "Anybody?"]).env("CREEL_BRIDGE_DIRECTORY", home.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stderr, b"creel-bridge: the bridge is gone: there will be no answer\n");
}

#[test]
fn output_of_any_size_and_content_is_delivered_completely() {
    let bridge = Bridge::start("for i in $(seq 60000); do printf '☃ \\377 %s\\n' $i; done");
    bridge.turn("1", "");
    let log = bridge.log_after_turn(1);
    log.assert_whole();
    let expected: String = (1..=60_000).map(|line| format!("☃ \u{fffd} {line}\n")).collect();
    assert!(log.text_of(1, Stream::Output) == expected);
    assert!(fs::read_dir(bridge.path("spool")).unwrap().count() > 1, "there are segments");
    let newest = log.events.len() as u64;
    bridge.run(&["acknowledge", "--to", &newest.to_string()]);
    assert_eq!(fs::read_dir(bridge.path("spool")).unwrap().count(), 1);
    bridge.kill();
    bridge.serve();
    bridge.turn("2", "");
    bridge.log_after_turn(2);
    let first = bridge.log_from(newest + 1).events.remove(0);
    assert!(matches!(first, (number, BridgeEvent::BridgeStarted { .. }) if number == newest + 1));
    bridge.stop();
}
