//! Shared test helpers: running the program, and inspecting processes.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::event::Stream;
use creel_bridge::exec::{ExecEnding, ExecEvent, ExecRequest};
use creel_bridge::frame::{Decoder, Frame};
use rustix::process::{Pid, Signal, kill_process};

/// The time limit of every wait in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Returns a command that runs the program.
pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_creel-bridge"));
    command.args(args);
    command
}

/// Starts the program with pipes for input and output, and writes its input.
pub(crate) fn start(args: &[&str], input: &[u8]) -> Child {
    let mut child = program(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(input).unwrap();
    child
}

/// Returns a request for a shell script.
pub(crate) fn script(script: &str) -> ExecRequest {
    ExecRequest {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        limit_ms: 60_000,
        ..ExecRequest::default()
    }
}

/// Returns a request as the line that is sent.
pub(crate) fn line(request: &impl serde::Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(request).unwrap();
    line.push(b'\n');
    line
}

/// The reports on a command.
#[derive(Debug, Default)]
pub(crate) struct ExecReport {
    /// All frames except output.
    pub frames: Vec<Frame<ExecEvent>>,
    /// The standard output.
    pub output: Vec<u8>,
    /// The standard error.
    pub error: Vec<u8>,
    /// The number of the last frame. The numbers have no gaps.
    pub last: u64,
}

impl ExecReport {
    /// Reads frames to the end.
    pub(crate) fn read(mut from: impl Read) -> Self {
        let (mut report, mut decoder, mut chunk) =
            (Self::default(), Decoder::default(), [0; 65536]);
        loop {
            let count = from.read(&mut chunk).unwrap();
            if count == 0 {
                return report;
            }
            decoder.feed(&chunk[..count], |frame| report.take(frame));
        }
    }

    fn take(&mut self, frame: Frame<ExecEvent>) {
        self.last += 1;
        assert_eq!(frame.seq, self.last, "frames have no gaps");
        match frame.body {
            ExecEvent::Output { stream, bytes } => {
                let bytes = BASE64_STANDARD.decode(bytes).unwrap();
                match stream {
                    Stream::Output => self.output.extend(bytes),
                    Stream::Error => self.error.extend(bytes),
                }
            }
            _ => self.frames.push(frame),
        }
    }

    /// Returns how it ended, from the last frame.
    pub(crate) fn ending(&self) -> ExecEnding {
        match &self.frames.last().expect("at least one frame was received").body {
            ExecEvent::Ended(ending) => *ending,
            other => panic!("it did not end: {other:?}"),
        }
    }

    /// Returns why it was not started, from the last frame.
    pub(crate) fn refusal(&self) -> &str {
        match &self.frames.last().expect("at least one frame was received").body {
            ExecEvent::NotStarted { reason } => reason,
            other => panic!("it was started: {other:?}"),
        }
    }
}

/// Runs one request to its end, with the input left open.
pub(crate) fn exec(request: &ExecRequest) -> ExecReport {
    let mut child = start(&["exec"], &line(request));
    let report = ExecReport::read(child.stdout.take().unwrap());
    child.wait().unwrap();
    report
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that a condition holds from now on for this long.
pub(crate) fn throughout(what: &str, duration: Duration, mut is_so: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while started_at.elapsed() < duration {
        assert!(is_so(), "not any more after {:?}: {what}", started_at.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether a process is alive. A zombie is not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state.is_some_and(|state| !matches!(state, b'Z' | b'X'))
}

/// Waits for a file with a process id in it, and returns the id.
pub(crate) fn pid_in(file: &Path) -> u32 {
    let mut pid = None;
    until("a process id", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    pid.expect("it was waited for")
}

/// Kills a process that a test has started. Does nothing if it is already gone.
pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal to a process that a test has started.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}
