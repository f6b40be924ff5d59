//! Staying with a command until it has ended.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::event::Stream;
use creel_bridge::exec::{Ending, Heard, Order};
use rustix::event::PollFlags;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, WaitStatus};

use crate::program::lookout::wait_for;
use crate::program::processes::{self, Scope};
use crate::program::signals::Signals;

use super::caller::Caller;
use super::outbox::Outbox;

/// How many bytes one frame holds at most.
const CHUNK: usize = 32 << 10;
/// How much is read of each stream after the end: more than a pipe can hold.
const LAST_WORDS: usize = 1 << 20;
/// How long the killed may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// How long the command may take when this process was asked to end.
const GRACE: Duration = Duration::from_secs(3);
/// The signal that nobody can refuse, as whoever hung up may still read it.
const KILLED: i32 = 9;

/// Why a command is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Limit,
    Silence,
    /// Whoever ordered it is gone, or this process was asked to end.
    HungUp,
}

/// One command that runs, and whoever stays with it.
#[derive(Debug)]
pub(super) struct Attendance {
    pid: u32,
    /// How it ended; kept from the moment it was reaped.
    status: Option<WaitStatus>,
    input: Input,
    output: Option<ChildStdout>,
    error: Option<ChildStderr>,
    signals: Signals,
    limit_at: Option<Instant>,
    silence: Option<Duration>,
    /// When it last wrote something, or could not because nobody read it.
    last_heard_at: Instant,
    /// When it is killed because this process was asked to end.
    force_at: Option<Instant>,
}

impl Attendance {
    /// Begins to attend to a command that was just started.
    pub(super) fn new(order: &Order, input: Vec<u8>, mut child: Child, signals: Signals) -> Self {
        let now = Instant::now();
        let attendance = Self {
            pid: child.id(),
            status: None,
            input: Input { pipe: child.stdin.take(), bytes: input, given: 0 },
            output: child.stdout.take(),
            error: child.stderr.take(),
            signals,
            limit_at: now.checked_add(Duration::from_millis(order.limit_ms)),
            silence: order.silence_ms.map(Duration::from_millis),
            last_heard_at: now,
            force_at: None,
        };
        attendance.make_nonblocking();
        attendance
    }

    fn make_nonblocking(&self) {
        let pipes = [
            self.input.pipe.as_ref().map(AsFd::as_fd),
            self.output.as_ref().map(AsFd::as_fd),
            self.error.as_ref().map(AsFd::as_fd),
        ];
        for pipe in pipes.into_iter().flatten() {
            ioctl_fionbio(pipe, true).expect("a pipe of our own takes this flag");
        }
    }

    /// Stays until the command has ended or was killed, with all that goes with it.
    pub(super) fn run(mut self, caller: &mut Caller, outbox: &mut Outbox) -> Ending {
        let cut = loop {
            self.reap();
            if self.signals.asked_to_end() {
                self.force_at.get_or_insert_with(|| Instant::now() + GRACE);
            }
            if self.status.is_some() {
                break None;
            }
            if let Some(cut) = self.cut(caller, outbox) {
                break Some(cut);
            }
            self.wait(caller, outbox);
            self.input.give();
            self.listen(outbox);
        };
        let scope = if cut.is_some() { Scope::Below } else { Scope::Session };
        self.end(scope);
        self.hear_last_words(outbox);
        self.ending(cut)
    }

    /// Returns why the command is to be killed now, if it is.
    fn cut(&self, caller: &Caller, outbox: &Outbox) -> Option<Cut> {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if caller.has_hung_up() || outbox.is_broken() || is_over(self.force_at) {
            Some(Cut::HungUp)
        } else if is_over(self.limit_at) {
            Some(Cut::Limit)
        } else if is_over(self.silent_at()) {
            Some(Cut::Silence)
        } else {
            None
        }
    }

    fn silent_at(&self) -> Option<Instant> {
        self.last_heard_at.checked_add(self.silence?)
    }

    /// Waits until something is to be done, and does what concerns others than the command.
    fn wait(&mut self, caller: &mut Caller, outbox: &mut Outbox) {
        let until = [self.limit_at, self.silent_at(), self.force_at, caller.look_at()];
        let until = until.into_iter().flatten().min();
        let mut watched = vec![outbox.watched(), (self.signals.as_fd(), PollFlags::IN)];
        watched.extend(self.input.watched());
        if outbox.has_room() {
            watched.extend(self.output.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)));
            watched.extend(self.error.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)));
        }
        watched.extend(caller.watched());
        let is_heard = caller.watched().is_some();
        let ready = wait_for(&watched, until);
        outbox.write(ready[0]);
        self.signals.drain();
        if is_heard {
            caller.hear(*ready.last().expect("the caller was added last"));
        }
        caller.look();
    }

    /// Reads what the command wrote, as far as there is room for it.
    fn listen(&mut self, outbox: &mut Outbox) {
        if !outbox.has_room() {
            // It is not the command that is silent.
            self.last_heard_at = Instant::now();
            return;
        }
        let heard = hear(&mut self.output, Stream::Output, outbox)
            + hear(&mut self.error, Stream::Error, outbox);
        if heard > 0 {
            self.last_heard_at = Instant::now();
        }
    }

    /// Reads what was written before the end. A daemon that lives on may hold the pipes open and
    /// go on writing, so this ends where there is nothing now, or too much.
    fn hear_last_words(&mut self, outbox: &mut Outbox) {
        let mut left = LAST_WORDS;
        while left > 0 {
            let heard = hear(&mut self.output, Stream::Output, outbox)
                + hear(&mut self.error, Stream::Error, outbox);
            if heard == 0 {
                return;
            }
            left = left.saturating_sub(heard);
        }
    }

    fn reap(&mut self) {
        let (pid, status) = (self.pid, &mut self.status);
        processes::reap(|reaped, how| note(pid, status, reaped, how));
    }

    fn end(&mut self, scope: Scope) {
        let (pid, status) = (self.pid, &mut self.status);
        // What does not die now is in the hands of the holder.
        let _ = processes::end(scope, DEATH_PATIENCE, |reaped, how| note(pid, status, reaped, how));
    }

    fn ending(&self, cut: Option<Cut>) -> Ending {
        match cut {
            Some(Cut::Limit) => Ending::TimedOut,
            Some(Cut::Silence) => Ending::Silent,
            Some(Cut::HungUp) => Ending::Signal { signal: KILLED },
            None => self.status.and_then(ending_of).unwrap_or(Ending::Signal { signal: KILLED }),
        }
    }
}

/// Keeps the status of the command among all that is reaped.
fn note(command: u32, status: &mut Option<WaitStatus>, reaped: Pid, how: WaitStatus) {
    if u32::try_from(reaped.as_raw_pid()) == Ok(command) {
        *status = Some(how);
    }
}

fn ending_of(status: WaitStatus) -> Option<Ending> {
    let code = status.exit_status().map(|code| Ending::Code { code });
    code.or_else(|| status.terminating_signal().map(|signal| Ending::Signal { signal }))
}

/// Reads once from a stream; returns how much there was. A stream that has ended is closed.
fn hear(pipe: &mut Option<impl Read>, stream: Stream, outbox: &mut Outbox) -> usize {
    let Some(open) = pipe else { return 0 };
    let mut chunk = [0; CHUNK];
    match open.read(&mut chunk) {
        Ok(count) if count > 0 => {
            let bytes = BASE64_STANDARD.encode(&chunk[..count]);
            outbox.push(&Heard::Output { stream, bytes });
            count
        }
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            0
        }
        Ok(_) | Err(_) => {
            *pipe = None;
            0
        }
    }
}

/// What the command reads.
#[derive(Debug)]
struct Input {
    pipe: Option<ChildStdin>,
    bytes: Vec<u8>,
    given: usize,
}

impl Input {
    fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.pipe.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::OUT))
    }

    /// Gives as much as is taken, and closes after the last byte.
    fn give(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.write(&self.bytes[self.given..]) {
            Ok(count) => self.given += count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            // The command does not want to read.
            Err(_) => self.given = self.bytes.len(),
        }
        if self.given >= self.bytes.len() {
            self.pipe = None;
        }
    }
}
