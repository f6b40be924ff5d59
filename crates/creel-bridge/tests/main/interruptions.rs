//! Interruptions at any instant: of bridges, and of their readers.

use std::fs;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::frame::Decoder;
use creel_bridge::serve::Sign;

use crate::bridge::{Bridge, Log};
use crate::support::{is_alive, kill, pid_in, until};

/// The script of a turn, with enough output to be interrupted.
const CHATTER: &str = "cat; i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo \"line $i\"; \
                       [ $((i % 8)) = 0 ] && sleep 0.01; done";

fn chatter(prompt: &str) -> String {
    let lines = (1..=40).map(|line| format!("line {line}\n"));
    std::iter::once(prompt.to_owned()).chain(lines).collect()
}

#[test]
fn a_program_dies_with_its_bridge_and_its_turn_is_ended_by_the_next_one() {
    let bridge = Bridge::start("cat; echo $$ > pid; sleep 1000");
    bridge.turn("1", "on\n");
    let command = pid_in(&bridge.home.path().join("pid"));
    bridge.log_when("the first output", |log| log.text_of(1, Stream::Output) == "on\n");
    bridge.kill();
    until("the death of the program", || !is_alive(command));
    let before = bridge.log();
    let newest = before.events.len() as u64;
    assert_eq!(before.signs, [Sign::Ended { newest }]);
    // The next bridge records its start, that it is ready, and the end of the turn.
    assert_eq!(bridge.serve(), newest + 3);
    let log = bridge.log();
    log.assert_whole();
    assert!(matches!(log.events[before.events.len()].1, BridgeEvent::BridgeStarted { .. }));
    assert_eq!(log.ending_of(1), Some(TurnEnding::Killed { signal: 9 }));
    bridge.stop();
}

/// Kills the bridge at instants all over a turn and restarts it, while a reader resumes each time
/// where it was. The reader receives what an undisturbed reader receives, every command is taken
/// once, and every turn that was not interrupted is complete.
#[test]
fn bridges_killed_at_any_instant_lose_and_repeat_no_event() {
    const KILLS: u64 = 30;
    let bridge = Bridge::start(CHATTER);
    let (mut received, mut turns) = (Log::default(), 0);
    for kill in 0..KILLS {
        turns += 1;
        bridge.turn(&format!("key-{turns}"), &format!("prompt {turns}\n"));
        let tail = bridge.follow(received.events.len() as u64 + 1);
        // Spread over the duration of a turn, with a stride that matches no period of it.
        std::thread::sleep(Duration::from_micros(kill * 37_501 % 150_000));
        bridge.kill();
        let output = tail.wait_with_output().unwrap();
        received.feed(&mut Decoder::default(), &output.stdout);
        assert!(matches!(received.signs.last(), Some(Sign::Ended { .. })), "kill {kill}");
        if kill % 3 == 0 {
            bridge.kill_while_it_starts(Duration::from_micros(kill * 373 % 8000));
        }
        bridge.serve();
    }
    bridge.turn("last", "last\n");
    bridge.log_after_turn(turns + 1);
    bridge.stop();
    let rest = bridge.log_from(received.events.len() as u64 + 1);
    received.events.extend(rest.events);
    let undisturbed = bridge.log();
    undisturbed.assert_whole();
    assert_eq!(received.events, undisturbed.events);
    for key in (1..=turns).map(|turn| format!("key-{turn}")).chain(["last".to_owned()]) {
        assert_eq!(undisturbed.taken(&key), 1, "{key}");
    }
    assert_turns(&undisturbed);
}

fn started(log: &Log) -> Vec<u32> {
    let started = log.events.iter().filter_map(|(_, event)| match event {
        BridgeEvent::TurnStarted { turn, .. } => Some(*turn),
        _ => None,
    });
    started.collect()
}

/// Asserts that turns are numbered without gaps, end once, and are complete unless interrupted.
fn assert_turns(log: &Log) {
    let started = started(log);
    assert_eq!(started, (1..=31).collect::<Vec<u32>>());
    let mut whole_count = 0;
    for turn in started {
        let ends = log.events.iter().filter(
            |(_, event)| matches!(event, BridgeEvent::TurnEnded { turn: ended, .. } if *ended == turn),
        );
        assert_eq!(ends.count(), 1, "turn {turn}");
        let text = log.text_of(turn, Stream::Output);
        let prompt = if turn == 31 { "last\n".to_owned() } else { format!("prompt {turn}\n") };
        match log.ending_of(turn) {
            Some(TurnEnding::Exited { code: 0 }) => {
                assert_eq!(text, chatter(&prompt), "turn {turn}");
                whole_count += 1;
            }
            Some(TurnEnding::Killed { signal: 9 }) => {
                assert!(chatter(&prompt).starts_with(&text), "turn {turn}: {text}");
            }
            other => panic!("turn {turn} ended with {other:?}"),
        }
    }
    assert!(whole_count > 0, "at least the last turn was not cut");
}

/// How long a reader has before it is cut.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

#[test]
fn a_reader_cut_every_twenty_milliseconds_receives_all_events() {
    let bridge = Bridge::start(CHATTER);
    for turn in 1..=10 {
        bridge.turn(&format!("key-{turn:02}"), &format!("prompt {turn}\n"));
    }
    let undisturbed = bridge.follow(1);
    let (mut received, mut cuts) = (Log::default(), 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    // On a busy machine a reader may need longer to start: one that received nothing is followed by
    // one that has twice the time.
    let (mut pause, mut known) = (FIRST_PAUSE, 0);
    while received.ending_of(10).is_none() {
        assert!(Instant::now() < deadline, "the turns never ended");
        let mut tail = bridge.follow(received.events.len() as u64 + 1);
        std::thread::sleep(pause);
        tail.kill().unwrap();
        let (mut bytes, mut output) = (Vec::new(), tail.stdout.take().unwrap());
        output.read_to_end(&mut bytes).unwrap();
        tail.wait().unwrap();
        received.feed(&mut Decoder::default(), &bytes);
        cuts += 1;
        pause = if received.events.len() > known { FIRST_PAUSE } else { pause * 2 };
        known = received.events.len();
    }
    assert!(cuts > 5, "{cuts}");
    bridge.stop();
    received.events.extend(bridge.log_from(received.events.len() as u64 + 1).events);
    let whole = Log::of(&undisturbed.wait_with_output().unwrap().stdout);
    whole.assert_whole();
    assert_eq!(received.events, whole.events);
    assert_eq!(whole.signs.last(), Some(&Sign::Ended { newest: whole.events.len() as u64 }));
    for turn in 1..=10 {
        let prompt = format!("prompt {turn}\n");
        assert_eq!(whole.text_of(turn, Stream::Output), chatter(&prompt), "turn {turn}");
    }
}

#[test]
fn a_crash_between_the_event_and_the_renaming_does_not_take_a_command_twice() {
    let bridge = Bridge::start("cat");
    bridge.turn("once", "first");
    bridge.log_after_turn(1);
    bridge.kill();
    fs::rename(bridge.path("commands/once.done"), bridge.path("commands/once.json")).unwrap();
    bridge.serve();
    assert!(bridge.path("commands/once.done").exists());
    bridge.turn("next", "second");
    let log = bridge.log_after_turn(2);
    assert_eq!((log.taken("once"), log.text_of(2, Stream::Output)), (1, "second".to_owned()));
    bridge.stop();
}

#[test]
fn an_incomplete_line_is_not_printed_and_the_next_bridge_truncates_it() {
    let bridge = Bridge::start("cat");
    bridge.turn("1", "on");
    let before = bridge.log_after_turn(1);
    bridge.kill();
    let segment = bridge.path("spool/00000000000000000001.frames");
    let mut file = fs::OpenOptions::new().append(true).open(&segment).unwrap();
    file.write_all(b"{\"seq\":7,\"crc\":\"0000").unwrap();
    assert_eq!(bridge.log().events, before.events);
    bridge.serve();
    bridge.stop();
    let after = bridge.log();
    after.assert_whole();
    assert!(after.events.starts_with(&before.events) && after.events.len() > before.events.len());
    let text = fs::read_to_string(&segment).unwrap();
    assert!(text.lines().all(|line| line.ends_with("}}")), "{text}");
}

#[test]
fn killing_the_exec_of_a_turn_kills_its_program() {
    let bridge = Bridge::start("echo $PPID > exec; echo $$ > pid; sleep 1000");
    bridge.turn("1", "");
    let [exec, command] = ["exec", "pid"].map(|name| pid_in(&bridge.home.path().join(name)));
    kill(exec);
    assert_eq!(bridge.log_after_turn(1).ending_of(1), Some(TurnEnding::Killed { signal: 9 }));
    until("the death of the program", || !is_alive(command));
    bridge.turn("2", "");
    bridge.log_when("the next turn", |log| log.taken("2") == 1);
    bridge.stop();
}

#[test]
fn a_reader_beyond_the_end_receives_the_newest_number() {
    let bridge = Bridge::start("cat");
    let log = bridge.log_from(100);
    assert_eq!((log.events.len(), log.signs), (0, vec![Sign::Alive { newest: 2 }]));
    bridge.stop();
}

#[test]
fn a_tail_ends_without_a_reader() {
    let bridge = Bridge::start("cat");
    let mut tail = bridge.follow(1);
    let mut first = [0; 10];
    tail.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(tail.stdout.take());
    until("the end of the tail", || tail.try_wait().unwrap().is_some());
    assert_eq!(tail.wait().unwrap().code(), Some(1));
    bridge.stop();
}

#[test]
fn signs_of_life_are_sent_while_idle() {
    let bridge = Bridge::start("cat");
    let tail = bridge.follow(3);
    std::thread::sleep(Duration::from_millis(1100));
    bridge.kill();
    let log = Log::of(&tail.wait_with_output().unwrap().stdout);
    let alive = log.signs.iter().filter(|sign| **sign == Sign::Alive { newest: 2 }).count();
    assert!((4..=7).contains(&alive), "{alive} signs in 1100 ms at one each 200 ms");
    assert_eq!(log.signs.last(), Some(&Sign::Ended { newest: 2 }));
}
