//! A bridge under test: start it, send commands, read its events, kill it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream};
use creel_bridge::frame::Decoder;
use creel_bridge::serve::{BridgeCommand, Runtime, ServeRequest, Sign, TailItem};

use crate::support::{is_alive, kill, line, program, until};

/// A directory in which bridges serve, one after the other.
pub(crate) struct Bridge {
    /// The directory of everything in the test.
    pub home: tempfile::TempDir,
    /// The request for each bridge.
    pub request: ServeRequest,
}

/// The output of a tail.
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
        let request = ServeRequest {
            directory: home.path().join("bridge").to_str().unwrap().to_owned(),
            runtime: Runtime::Command { command },
            workspace: home.path().to_str().unwrap().to_owned(),
            env: [("SECRET".to_owned(), "hush".to_owned())].into(),
            heartbeat_ms: 200,
            lease_ms: 600_000,
        };
        Self { home, request }
    }

    /// Runs `serve`, and returns the newest number that it reports.
    pub(crate) fn serve(&self) -> u64 {
        let mut child =
            program(&["serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&line(&self.request)).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "the bridge stands");
        match Log::of(&output.stdout).signs.as_slice() {
            [Sign::Alive { newest }] => *newest,
            other => panic!("one sign of life was due: {other:?}"),
        }
    }

    /// Returns a path in the bridge's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(&self.request.directory).join(name)
    }

    /// Sends the bridge a command, as an upload does.
    pub(crate) fn send(&self, key: &str, command: &BridgeCommand) {
        let draft = self.path(&format!("commands/.{key}"));
        fs::write(&draft, serde_json::to_vec(command).unwrap()).unwrap();
        fs::rename(draft, self.path(&format!("commands/{key}.json"))).unwrap();
    }

    /// Requests a turn with ample limits.
    pub(crate) fn turn(&self, key: &str, prompt: &str) {
        let prompt = prompt.to_owned();
        self.send(key, &BridgeCommand::Turn { prompt, limit_ms: 60_000, silence_ms: None });
    }

    /// Stops the bridge, and waits until it is gone.
    pub(crate) fn stop(&self) {
        self.send("stop", &BridgeCommand::Stop { grace_ms: 1000 });
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

    /// Starts a bridge, and kills it after a while, whether it already serves or not.
    pub(crate) fn kill_while_it_starts(&self, after: Duration) {
        let mut serve = program(&["serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        serve.stdin.take().unwrap().write_all(&line(&self.request)).unwrap();
        std::thread::sleep(after);
        // The lock names the previous bridge until the new one has taken it.
        let pid = fs::read_to_string(self.path("lock")).unwrap().trim().parse();
        if let Some(pid) = pid.ok().filter(|pid| is_alive(*pid)) {
            kill(pid);
        }
        serve.wait().unwrap();
    }

    /// Starts a tail that follows the spool.
    pub(crate) fn follow(&self, from: u64) -> Child {
        program(&["tail", "--follow", "--from", &from.to_string(), "--directory"])
            .arg(&self.request.directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Returns the current content of the spool.
    pub(crate) fn log(&self) -> Log {
        self.log_from(1)
    }

    /// Returns the current content of the spool from a number on.
    pub(crate) fn log_from(&self, from: u64) -> Log {
        let output = program(&["tail", "--from", &from.to_string(), "--directory"])
            .arg(&self.request.directory)
            .output()
            .unwrap();
        assert!(output.status.success());
        Log::of(&output.stdout)
    }

    /// Waits until the log satisfies a condition, and returns it.
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
    pub(crate) fn run(&self, args: &[&str]) {
        let status =
            program(args).arg("--directory").arg(&self.request.directory).status().unwrap();
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
    /// Decodes frames.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut log = Self::default();
        log.feed(&mut Decoder::default(), bytes);
        log
    }

    /// Feeds bytes of a tail to the decoder.
    pub(crate) fn feed(&mut self, decoder: &mut Decoder, bytes: &[u8]) {
        decoder.feed(bytes, |frame| match frame.body {
            TailItem::Sign(sign) => self.signs.push(sign),
            TailItem::Event(event) => self.events.push((frame.seq, event)),
        });
    }

    /// Asserts that numbers start at 1 and have no gaps.
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

    /// Returns the text that a turn wrote.
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

    /// Returns the requests with their questions.
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
