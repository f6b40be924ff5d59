//! One turn: a program under an `exec` of its own.
//!
//! The `exec` dies with this process, whatever ends it, and takes the program and all
//! below it along; and it holds the bridge's turn file until that is done, so that two
//! turns never overlap, not even across a crash.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::exec::{Ending, Heard, Order};
use creel_bridge::frame::Decoder;
use rustix::event::PollFlags;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::program::processes::{self, Scope};
use crate::program::spawn::this_program;

use super::text::TextOf;

/// What stands for the prompt in a command.
const PROMPT: &str = "{prompt}";
/// How long the killed may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// What a turn is to do.
#[derive(Debug)]
pub(super) struct Task<'a> {
    /// Its number.
    pub number: u32,
    /// The program and its arguments.
    pub command: &'a [String],
    /// What the agent is told.
    pub prompt: &'a str,
    /// Variables on top of those of this process.
    pub env: BTreeMap<String, String>,
    /// Where it starts.
    pub workspace: &'a str,
    /// The file that only one turn holds at a time.
    pub turn_file: &'a Path,
    /// When it is cut off.
    pub limit: Duration,
    /// How long it may say nothing.
    pub silence: Option<Duration>,
}

impl Task<'_> {
    fn order(&self) -> Order {
        let has_place = self.command.iter().any(|word| word.contains(PROMPT));
        let input = if has_place { String::new() } else { BASE64_STANDARD.encode(self.prompt) };
        Order {
            command: self.command.iter().map(|word| word.replace(PROMPT, self.prompt)).collect(),
            env: self.env.clone(),
            directory: Some(self.workspace.to_owned()),
            input,
            // The clocks stand still while a person is asked, and only the bridge knows of that.
            limit_ms: u64::MAX,
            silence_ms: None,
        }
    }
}

/// A turn that is under way.
#[derive(Debug)]
pub(super) struct Turn {
    number: u32,
    exec: Child,
    /// The end of this is what kills the program.
    line: Option<ChildStdin>,
    frames: ChildStdout,
    decoder: Decoder,
    texts: [TextOf; 2],
    /// The program's process group.
    group: Option<Pid>,
    /// Why it is being killed.
    cut: Option<TurnEnding>,
    /// Whether the `exec` is gone without a last word, and the program perhaps not.
    is_abandoned: bool,
    clocks: Clocks,
}

impl Turn {
    /// Starts a turn.
    pub(super) fn start(task: &Task<'_>) -> io::Result<Self> {
        let mut exec = this_program(["exec", "--while-connected", "--after"])
            .arg(task.turn_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = exec.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let frames = exec.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        ioctl_fionbio(&frames, true)?;
        let mut order = serde_json::to_vec(&task.order())?;
        order.push(b'\n');
        // An `exec` that is gone already is found so when its frames end.
        let _ = line.write_all(&order);
        Ok(Self {
            number: task.number,
            exec,
            line: Some(line),
            frames,
            decoder: Decoder::default(),
            texts: Default::default(),
            group: None,
            cut: None,
            is_abandoned: false,
            clocks: Clocks::start(task.limit, task.silence),
        })
    }

    /// Returns its number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns what to poll for.
    pub(super) fn watched(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.frames.as_fd(), PollFlags::IN)
    }

    /// Returns when its clocks want to be looked at.
    pub(super) fn due_at(&self) -> Option<Instant> {
        if self.cut.is_some() { None } else { self.clocks.due_at() }
    }

    /// Reads what was heard since the last time; the end of the turn is the last event.
    pub(super) fn listen(&mut self) -> Vec<BridgeEvent> {
        let mut chunk = vec![0; CHUNK];
        match self.frames.read(&mut chunk) {
            Ok(0) => {
                self.is_abandoned = true;
                self.ended(TurnEnding::Killed { signal: KILLED })
            }
            Ok(count) => {
                let mut heard = Vec::new();
                self.decoder.feed(&chunk[..count], |frame| heard.push(frame.body));
                heard.into_iter().flat_map(|heard| self.hear(heard)).collect()
            }
            Err(_) => Vec::new(),
        }
    }

    fn hear(&mut self, heard: Heard) -> Vec<BridgeEvent> {
        match heard {
            Heard::Started { pid } => {
                self.group = i32::try_from(pid).ok().and_then(Pid::from_raw);
                Vec::new()
            }
            Heard::Output { stream, bytes } => {
                self.clocks.hear();
                let bytes = BASE64_STANDARD.decode(bytes).unwrap_or_default();
                let texts = self.texts[stream as usize].take(&bytes);
                texts.into_iter().map(|text| self.text(stream, text)).collect()
            }
            Heard::Ended(ending) => self.ended(match ending {
                Ending::Code { code } => TurnEnding::Exited { code },
                Ending::Signal { signal } => TurnEnding::Killed { signal },
                Ending::TimedOut => TurnEnding::TimedOut,
                Ending::Silent => TurnEnding::Silent,
            }),
            Heard::NotStarted { reason } => self.ended(TurnEnding::NotStarted { reason }),
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

    /// Lets its clocks run, or stand still while a person is asked; cuts it when they say so.
    pub(super) fn tick(&mut self, is_person_asked: bool) {
        if self.cut.is_none()
            && let Some(cut) = self.clocks.tick(is_person_asked)
        {
            self.cut(cut);
        }
    }

    /// Kills the program, and says afterwards that this was why.
    pub(super) fn cut(&mut self, why: TurnEnding) {
        self.cut.get_or_insert(why);
        self.line = None;
    }

    /// Asks the program to end.
    pub(super) fn ask_to_end(&self) {
        if let Some(group) = self.group {
            // One that ended meanwhile needs no asking.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Lets go of the `exec`, and waits until it has cleared away. Where somebody has killed it,
    /// everything below this process is ended in its place.
    pub(super) fn close(self) {
        let Self { mut exec, line, frames, is_abandoned, .. } = self;
        drop((line, frames));
        // Orphans are reaped all the time, and it may have been among them.
        let _ = exec.wait();
        if is_abandoned {
            // What does not die now is tried again at the end of the bridge.
            let _ = processes::end(Scope::Everything, DEATH_PATIENCE, |_, _| {});
        }
    }
}

/// The signal that nobody can refuse.
const KILLED: i32 = 9;

/// The clocks of a turn, which stand still while a person is asked.
#[derive(Debug)]
struct Clocks {
    limit: Duration,
    silence: Option<Duration>,
    /// How long the turn has run, and how long it has said nothing, up to the last look.
    run: Duration,
    silent: Duration,
    looked_at: Instant,
}

impl Clocks {
    fn start(limit: Duration, silence: Option<Duration>) -> Self {
        let (run, silent) = (Duration::ZERO, Duration::ZERO);
        Self { limit, silence, run, silent, looked_at: Instant::now() }
    }

    fn hear(&mut self) {
        self.silent = Duration::ZERO;
    }

    fn tick(&mut self, is_still: bool) -> Option<TurnEnding> {
        let passed = self.looked_at.elapsed();
        self.looked_at += passed;
        if is_still {
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
        self.looked_at.checked_add(to_silence.map_or(to_limit, |other| other.min(to_limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task<'a>(command: &'a [String]) -> Task<'a> {
        Task {
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
    fn the_prompt_stands_in_its_place_or_on_the_standard_input() {
        let in_place = ["agent".to_owned(), "--prompt={prompt}".to_owned()];
        let order = task(&in_place).order();
        assert_eq!((order.command[1].as_str(), order.input.as_str()), ("--prompt=Say \"hi\"", ""));
        let without = ["agent".to_owned()];
        let order = task(&without).order();
        assert_eq!(BASE64_STANDARD.decode(order.input).unwrap(), b"Say \"hi\"");
    }

    #[test]
    fn the_clocks_stand_still_while_a_person_is_asked() {
        let mut clocks = Clocks::start(Duration::from_secs(5), Some(Duration::from_secs(2)));
        let ago = |seconds| Instant::now() - Duration::from_secs(seconds);
        clocks.looked_at = ago(60);
        assert_eq!(clocks.tick(true), None);
        clocks.looked_at = ago(3);
        assert_eq!(clocks.tick(false), Some(TurnEnding::Silent));
        clocks.hear();
        clocks.looked_at = ago(3);
        assert_eq!(clocks.tick(false), Some(TurnEnding::TimedOut));
    }
}
