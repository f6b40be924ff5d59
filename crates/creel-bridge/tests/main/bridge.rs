//! A bridge under test: started, told things, listened to, killed.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream};
use creel_bridge::frame::Decoder;
use creel_bridge::serve::{Command, Order, Runtime, Sign, Told};

use crate::support::{is_alive, kill, line, program, until};

/// A directory in which bridges serve, one after the other.
pub(crate) struct Bridge {
    /// Where everything of the test is.
    pub home: tempfile::TempDir,
    /// What each of them is told.
    pub order: Order,
}

/// What a tail told.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Log {
    /// The events with their numbers.
    pub events: Vec<(u64, BridgeEvent)>,
    /// The signs.
    pub signs: Vec<Sign>,
}

impl Bridge {
    /// Starts a bridge whose runtime is a shell script.
    pub(crate) fn start(script: &str) -> Self {
        let bridge = Self::prepare(script);
        bridge.serve();
        bridge
    }

    /// Prepares a bridge without starting it.
    pub(crate) fn prepare(script: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let order = Order {
            directory: home.path().join("bridge").to_str().unwrap().to_owned(),
            runtime: Runtime::Command { command },
            workspace: home.path().to_str().unwrap().to_owned(),
            env: [("SECRET".to_owned(), "hush".to_owned())].into(),
            heartbeat_ms: 200,
            lease_ms: 600_000,
        };
        Self { home, order }
    }

    /// Runs `serve`, and returns the newest number that it tells of.
    pub(crate) fn serve(&self) -> u64 {
        let mut child =
            program(&["serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&line(&self.order)).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "the bridge stands");
        match Log::of(&output.stdout).signs.as_slice() {
            [Sign::Alive { newest }] => *newest,
            other => panic!("one sign of life was due: {other:?}"),
        }
    }

    /// Returns a path in the bridge's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(&self.order.directory).join(name)
    }

    /// Tells the bridge something, as an upload does.
    pub(crate) fn tell(&self, key: &str, command: &Command) {
        let draft = self.path(&format!("commands/.{key}"));
        fs::write(&draft, serde_json::to_vec(command).unwrap()).unwrap();
        fs::rename(draft, self.path(&format!("commands/{key}.json"))).unwrap();
    }

    /// Orders a turn with ample limits.
    pub(crate) fn turn(&self, key: &str, prompt: &str) {
        let prompt = prompt.to_owned();
        self.tell(key, &Command::Turn { prompt, limit_ms: 60_000, silence_ms: None });
    }

    /// Tells the bridge to stop, and waits until it is gone.
    pub(crate) fn stop(&self) {
        self.tell("stop", &Command::Stop { grace_ms: 1000 });
        until("the end of the bridge", || !self.is_served());
    }

    /// Returns the process id of the bridge.
    pub(crate) fn pid(&self) -> u32 {
        fs::read_to_string(self.path("lock")).unwrap().trim().parse().unwrap()
    }

    /// Returns whether a bridge serves.
    pub(crate) fn is_served(&self) -> bool {
        let lock = fs::File::open(self.path("lock")).unwrap();
        lock.try_lock_shared().is_err()
    }

    /// Kills the bridge with -9, and waits until it is gone.
    pub(crate) fn kill(&self) {
        let pid = self.pid();
        kill(pid);
        until("the death of the bridge", || !is_alive(pid));
    }

    /// Starts a bridge, and kills it after a while, whether it stands already or not.
    pub(crate) fn kill_while_it_starts(&self, after: Duration) {
        let mut serve = program(&["serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        serve.stdin.take().unwrap().write_all(&line(&self.order)).unwrap();
        std::thread::sleep(after);
        // The lock names the one before until the new one has it.
        let pid = fs::read_to_string(self.path("lock")).unwrap().trim().parse();
        if let Some(pid) = pid.ok().filter(|pid| is_alive(*pid)) {
            kill(pid);
        }
        serve.wait().unwrap();
    }

    /// Returns a tail that runs.
    pub(crate) fn follow(&self, from: u64) -> Child {
        program(&["tail", "--follow", "--from", &from.to_string(), "--directory"])
            .arg(&self.order.directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Returns what is in the spool now.
    pub(crate) fn log(&self) -> Log {
        self.log_from(1)
    }

    /// Returns what is in the spool now from a number on.
    pub(crate) fn log_from(&self, from: u64) -> Log {
        let output = program(&["tail", "--from", &from.to_string(), "--directory"])
            .arg(&self.order.directory)
            .output()
            .unwrap();
        assert!(output.status.success());
        Log::of(&output.stdout)
    }

    /// Waits until the log is as it should be, and returns it.
    pub(crate) fn log_when(&self, what: &str, is_so: impl Fn(&Log) -> bool) -> Log {
        let mut log = Log::default();
        until(what, || {
            log = self.log();
            is_so(&log)
        });
        log
    }

    /// Waits for the end of a turn, and returns the log.
    pub(crate) fn log_after_turn(&self, turn: u32) -> Log {
        self.log_when("the end of the turn", |log| log.ending_of(turn).is_some())
    }

    /// Runs one of the short commands.
    pub(crate) fn run(&self, words: &[&str]) {
        let status = program(words).arg("--directory").arg(&self.order.directory).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // A test that failed must leave no bridge behind.
        if self.path("lock").exists() && self.is_served() {
            kill(self.pid());
        }
    }
}

impl Log {
    /// Reads frames.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut log = Self::default();
        log.feed(&mut Decoder::default(), bytes);
        log
    }

    /// Takes bytes of a tail in.
    pub(crate) fn feed(&mut self, decoder: &mut Decoder, bytes: &[u8]) {
        decoder.feed(bytes, |frame| match frame.body {
            Told::Sign(sign) => self.signs.push(sign),
            Told::Event(event) => self.events.push((frame.seq, event)),
        });
    }

    /// Asserts that numbers go from 1 on without gaps.
    pub(crate) fn assert_whole(&self) {
        let numbers: Vec<u64> = self.events.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    }

    /// Returns how a turn ended.
    pub(crate) fn ending_of(&self, sought: u32) -> Option<creel_bridge::event::TurnEnding> {
        self.events.iter().find_map(|(_, event)| match event {
            BridgeEvent::TurnEnded { turn, how } if *turn == sought => Some(how.clone()),
            _ => None,
        })
    }

    /// Returns what a turn wrote.
    pub(crate) fn text_of(&self, sought: u32, from: Stream) -> String {
        self.events
            .iter()
            .filter_map(|(_, event)| match event {
                BridgeEvent::Text { turn, stream, text } if (*turn, *stream) == (sought, from) => {
                    Some(text.as_str())
                }
                _ => None,
            })
            .collect()
    }

    /// Returns how often a key was taken.
    pub(crate) fn taken(&self, sought: &str) -> usize {
        let is_it = |event: &BridgeEvent| matches!(event, BridgeEvent::CommandTaken { key } if key == sought);
        self.events.iter().filter(|(_, event)| is_it(event)).count()
    }

    /// Returns the requests that are asked.
    pub(crate) fn requests(&self) -> Vec<(String, String)> {
        let requests = self.events.iter().filter_map(|(_, event)| match event {
            BridgeEvent::InputRequested { request, question, .. } => {
                Some((request.clone(), question.clone()))
            }
            _ => None,
        });
        requests.collect()
    }
}
