//! One turn: a program under its own `exec`.
//!
//! The `exec` dies with this process, for whatever reason that ends, and takes the program and
//! everything below it along. It holds the bridge's turn file until that is done, so two turns
//! never overlap, not even across a crash.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::exec::{ExecEnding, ExecEvent, ExecRequest};
use creel_bridge::frame::Decoder;
use rustix::event::PollFlags;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::program::processes::{self, ProcessScope};
use crate::program::spawn::this_program;

use super::text::TextOf;

/// The placeholder for the prompt in a command.
const PROMPT: &str = "{prompt}";
/// How long killed processes may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// The number of bytes read at once.
const CHUNK: usize = 64 << 10;

/// The parameters of a turn.
#[derive(Debug)]
pub(super) struct TurnParams<'a> {
    /// The turn's number.
    pub number: u32,
    /// The program and its arguments.
    pub command: &'a [String],
    /// The prompt for the agent.
    pub prompt: &'a str,
    /// Variables on top of those of this process.
    pub env: BTreeMap<String, String>,
    /// The working directory.
    pub workspace: &'a str,
    /// The file that only one turn holds at a time.
    pub turn_file: &'a Path,
    /// The time after which the turn is killed.
    pub limit: Duration,
    /// The longest time without output.
    pub silence: Option<Duration>,
}

impl TurnParams<'_> {
    fn exec_request(&self) -> ExecRequest {
        let has_place = self.command.iter().any(|arg| arg.contains(PROMPT));
        let input = if has_place { String::new() } else { BASE64_STANDARD.encode(self.prompt) };
        ExecRequest {
            command: self.command.iter().map(|arg| arg.replace(PROMPT, self.prompt)).collect(),
            env: self.env.clone(),
            directory: Some(self.workspace.to_owned()),
            input,
            // The clocks pause while a person is asked, and only the bridge knows about that.
            limit_ms: u64::MAX,
            silence_ms: None,
        }
    }
}

/// A running turn.
#[derive(Debug)]
pub(super) struct RunningTurn {
    number: u32,
    exec: Child,
    /// Closing this pipe kills the program.
    line: Option<ChildStdin>,
    frames: ChildStdout,
    decoder: Decoder,
    texts: [TextOf; 2],
    /// The program's process group.
    group: Option<Pid>,
    /// Why the program is being killed.
    cut: Option<TurnEnding>,
    /// Whether the `exec` is gone without a final frame, so the program may still run.
    is_abandoned: bool,
    clocks: TurnClocks,
}

impl RunningTurn {
    /// Starts a turn.
    pub(super) fn start(params: &TurnParams<'_>) -> io::Result<Self> {
        let mut exec = this_program(["exec", "--while-connected", "--after"])
            .arg(params.turn_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = exec.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let frames = exec.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        ioctl_fionbio(&frames, true)?;
        let mut request = serde_json::to_vec(&params.exec_request())?;
        request.push(b'\n');
        // If the `exec` is already gone, the end of its frames shows it.
        let _ = line.write_all(&request);
        Ok(Self {
            number: params.number,
            exec,
            line: Some(line),
            frames,
            decoder: Decoder::default(),
            texts: Default::default(),
            group: None,
            cut: None,
            is_abandoned: false,
            clocks: TurnClocks::start(params.limit, params.silence),
        })
    }

    /// Returns the turn's number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns what to poll for.
    pub(super) fn watched(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.frames.as_fd(), PollFlags::IN)
    }

    /// Returns when the clocks must be checked next.
    pub(super) fn due_at(&self) -> Option<Instant> {
        if self.cut.is_some() { None } else { self.clocks.due_at() }
    }

    /// Reads the frames that arrived since the last call. The end of the turn is the last event.
    pub(super) fn read_output(&mut self) -> Vec<BridgeEvent> {
        let mut chunk = vec![0; CHUNK];
        match self.frames.read(&mut chunk) {
            Ok(0) => {
                self.is_abandoned = true;
                self.ended(TurnEnding::Killed { signal: KILLED })
            }
            Ok(count) => {
                let mut received = Vec::new();
                self.decoder.feed(&chunk[..count], |frame| received.push(frame.body));
                received.into_iter().flat_map(|event| self.handle(event)).collect()
            }
            Err(_) => Vec::new(),
        }
    }

    fn handle(&mut self, event: ExecEvent) -> Vec<BridgeEvent> {
        match event {
            ExecEvent::Started { pid } => {
                self.group = i32::try_from(pid).ok().and_then(Pid::from_raw);
                Vec::new()
            }
            ExecEvent::Output { stream, bytes } => {
                self.clocks.reset_silence();
                let bytes = BASE64_STANDARD.decode(bytes).unwrap_or_default();
                let texts = self.texts[stream as usize].take(&bytes);
                texts.into_iter().map(|text| self.text(stream, text)).collect()
            }
            ExecEvent::Ended(ending) => self.ended(match ending {
                ExecEnding::Code { code } => TurnEnding::Exited { code },
                ExecEnding::Signal { signal } => TurnEnding::Killed { signal },
                ExecEnding::TimedOut => TurnEnding::TimedOut,
                ExecEnding::Silent => TurnEnding::Silent,
            }),
            ExecEvent::NotStarted { reason } => self.ended(TurnEnding::NotStarted { reason }),
        }
    }

    fn text(&self, stream: Stream, text: String) -> BridgeEvent {
        BridgeEvent::Text { turn: self.number, stream, text }
    }

    fn ended(&mut self, how: TurnEnding) -> Vec<BridgeEvent> {
        self.group = None;
        let mut events = Vec::new();
        for stream in [Stream::Output, Stream::Error] {
            let texts = self.texts[stream as usize].end();
            events.extend(texts.into_iter().map(|text| self.text(stream, text)));
        }
        let how = self.cut.take().unwrap_or(how);
        events.push(BridgeEvent::TurnEnded { turn: self.number, how });
        events
    }

    /// Advances the clocks, or pauses them while a person is asked. Kills the program when one
    /// expires.
    pub(super) fn tick(&mut self, is_input_pending: bool) {
        if self.cut.is_none()
            && let Some(cut) = self.clocks.tick(is_input_pending)
        {
            self.cut(cut);
        }
    }

    /// Kills the program, and later reports this reason.
    pub(super) fn cut(&mut self, why: TurnEnding) {
        self.cut.get_or_insert(why);
        self.line = None;
    }

    /// Asks the program to end.
    pub(super) fn ask_to_end(&self) {
        if let Some(group) = self.group {
            // The group may have ended meanwhile, which is fine.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Releases the `exec`, and waits until it has cleaned up. If the `exec` was killed, this ends
    /// everything below this process instead.
    pub(super) fn close(self) {
        let Self { mut exec, line, frames, is_abandoned, .. } = self;
        drop((line, frames));
        // The bridge reaps orphans all the time, and may already have reaped the `exec`.
        let _ = exec.wait();
        if is_abandoned {
            // What does not die now is killed again at the end of the bridge.
            let _ = processes::end(ProcessScope::Everything, DEATH_PATIENCE, |_, _| {});
        }
    }
}

/// The number of `SIGKILL`.
const KILLED: i32 = 9;

/// The clocks of a turn, which pause while a person is asked.
#[derive(Debug)]
struct TurnClocks {
    limit: Duration,
    silence: Option<Duration>,
    /// How long the turn has run, and how long it has been silent, up to the last check.
    run: Duration,
    silent: Duration,
    checked_at: Instant,
}

impl TurnClocks {
    fn start(limit: Duration, silence: Option<Duration>) -> Self {
        let (run, silent) = (Duration::ZERO, Duration::ZERO);
        Self { limit, silence, run, silent, checked_at: Instant::now() }
    }

    fn reset_silence(&mut self) {
        self.silent = Duration::ZERO;
    }

    fn tick(&mut self, is_paused: bool) -> Option<TurnEnding> {
        let passed = self.checked_at.elapsed();
        self.checked_at += passed;
        if is_paused {
            self.silent = Duration::ZERO;
            return None;
        }
        self.run = self.run.saturating_add(passed);
        self.silent = self.silent.saturating_add(passed);
        if self.run >= self.limit {
            Some(TurnEnding::TimedOut)
        } else if self.silence.is_some_and(|silence| self.silent >= silence) {
            Some(TurnEnding::Silent)
        } else {
            None
        }
    }

    fn due_at(&self) -> Option<Instant> {
        let to_limit = self.limit.saturating_sub(self.run);
        let to_silence = self.silence.map(|silence| silence.saturating_sub(self.silent));
        self.checked_at.checked_add(to_silence.map_or(to_limit, |other| other.min(to_limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params<'a>(command: &'a [String]) -> TurnParams<'a> {
        TurnParams {
            number: 1,
            command,
            prompt: "Say \"hi\"",
            env: BTreeMap::new(),
            workspace: "/",
            turn_file: Path::new("turn"),
            limit: Duration::from_secs(1),
            silence: None,
        }
    }

    #[test]
    fn the_prompt_replaces_its_placeholder_or_goes_to_standard_input() {
        let in_place = ["agent".to_owned(), "--prompt={prompt}".to_owned()];
        let request = params(&in_place).exec_request();
        assert_eq!(
            (request.command[1].as_str(), request.input.as_str()),
            ("--prompt=Say \"hi\"", "")
        );
        let without = ["agent".to_owned()];
        let request = params(&without).exec_request();
        assert_eq!(BASE64_STANDARD.decode(request.input).unwrap(), b"Say \"hi\"");
    }

    #[test]
    fn the_clocks_pause_while_input_is_pending() {
        let mut clocks = TurnClocks::start(Duration::from_secs(5), Some(Duration::from_secs(2)));
        let ago = |seconds| Instant::now() - Duration::from_secs(seconds);
        clocks.checked_at = ago(60);
        assert_eq!(clocks.tick(true), None);
        clocks.checked_at = ago(3);
        assert_eq!(clocks.tick(false), Some(TurnEnding::Silent));
        clocks.reset_silence();
        clocks.checked_at = ago(3);
        assert_eq!(clocks.tick(false), Some(TurnEnding::TimedOut));
    }
}
