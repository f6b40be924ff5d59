//! Supervises a command until it has ended.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::event::Stream;
use creel_bridge::exec::{ExecEnding, ExecEvent, ExecRequest};
use rustix::event::PollFlags;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, WaitStatus};

use crate::program::poll::wait_for;
use crate::program::processes::{self, ProcessScope};
use crate::program::signals::Signals;

use super::caller::Caller;
use super::outbox::Outbox;

/// The maximum number of bytes in one frame.
const CHUNK: usize = 32 << 10;
/// The maximum number of bytes read from both streams after the end; more than a pipe can hold.
const MAX_FINAL_OUTPUT: usize = 1 << 20;
/// How long killed processes may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// The grace period of the command after this process was asked to end.
const GRACE: Duration = Duration::from_secs(3);
/// The number of `SIGKILL`, reported to a caller that hung up but may still read.
const KILLED: i32 = 9;

/// Why a command is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillReason {
    Limit,
    Silence,
    /// The caller is gone, or this process was asked to end.
    HungUp,
}

/// A running command under supervision.
#[derive(Debug)]
pub(super) struct RunningCommand {
    pid: u32,
    /// The exit status, set when the command is reaped.
    status: Option<WaitStatus>,
    input: CommandInput,
    output: Option<ChildStdout>,
    error: Option<ChildStderr>,
    signals: Signals,
    limit_at: Option<Instant>,
    silence: Option<Duration>,
    /// The last time the command wrote something, or could not because the output was not read.
    last_output_at: Instant,
    /// When the command is killed because this process was asked to end.
    force_at: Option<Instant>,
}

impl RunningCommand {
    /// Begins to supervise a command that was just started.
    pub(super) fn new(
        request: &ExecRequest,
        input: Vec<u8>,
        mut child: Child,
        signals: Signals,
    ) -> Self {
        let now = Instant::now();
        let running = Self {
            pid: child.id(),
            status: None,
            input: CommandInput { pipe: child.stdin.take(), bytes: input, written: 0 },
            output: child.stdout.take(),
            error: child.stderr.take(),
            signals,
            limit_at: now.checked_add(Duration::from_millis(request.limit_ms)),
            silence: request.silence_ms.map(Duration::from_millis),
            last_output_at: now,
            force_at: None,
        };
        running.make_nonblocking();
        running
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

    /// Runs until the command has ended or was killed, with everything that ends with it.
    pub(super) fn run(mut self, caller: &mut Caller, outbox: &mut Outbox) -> ExecEnding {
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
            self.input.write_some();
            self.read_output(outbox);
        };
        let scope = if cut.is_some() { ProcessScope::Below } else { ProcessScope::Session };
        self.end(scope);
        self.read_final_output(outbox);
        self.ending(cut)
    }

    /// Returns why the command must be killed now, if it must.
    fn cut(&self, caller: &Caller, outbox: &Outbox) -> Option<KillReason> {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if caller.has_hung_up() || outbox.is_broken() || is_over(self.force_at) {
            Some(KillReason::HungUp)
        } else if is_over(self.limit_at) {
            Some(KillReason::Limit)
        } else if is_over(self.silent_at()) {
            Some(KillReason::Silence)
        } else {
            None
        }
    }

    fn silent_at(&self) -> Option<Instant> {
        self.last_output_at.checked_add(self.silence?)
    }

    /// Waits for the next event, and handles those that do not come from the command.
    fn wait(&mut self, caller: &mut Caller, outbox: &mut Outbox) {
        let until = [self.limit_at, self.silent_at(), self.force_at, caller.next_check_at()];
        let until = until.into_iter().flatten().min();
        let mut watched = vec![outbox.watched(), (self.signals.as_fd(), PollFlags::IN)];
        watched.extend(self.input.watched());
        if outbox.has_room() {
            watched.extend(self.output.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)));
            watched.extend(self.error.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::IN)));
        }
        watched.extend(caller.watched());
        let reads_input = caller.watched().is_some();
        let ready = wait_for(&watched, until);
        outbox.write(ready[0]);
        self.signals.drain();
        if reads_input {
            caller.read_input(*ready.last().expect("the caller was added last"));
        }
        caller.check_sign();
    }

    /// Reads the command's output, as far as there is room for it.
    fn read_output(&mut self, outbox: &mut Outbox) {
        if !outbox.has_room() {
            // The command is not silent; its output is not being read.
            self.last_output_at = Instant::now();
            return;
        }
        let count = read_stream(&mut self.output, Stream::Output, outbox)
            + read_stream(&mut self.error, Stream::Error, outbox);
        if count > 0 {
            self.last_output_at = Instant::now();
        }
    }

    /// Reads the output written before the end. A daemon that lives on may keep the pipes open and
    /// continue to write, so this stops when there is nothing to read now, or too much.
    fn read_final_output(&mut self, outbox: &mut Outbox) {
        let mut left = MAX_FINAL_OUTPUT;
        while left > 0 {
            let count = read_stream(&mut self.output, Stream::Output, outbox)
                + read_stream(&mut self.error, Stream::Error, outbox);
            if count == 0 {
                return;
            }
            left = left.saturating_sub(count);
        }
    }

    fn reap(&mut self) {
        let (pid, status) = (self.pid, &mut self.status);
        processes::reap(|reaped, how| note(pid, status, reaped, how));
    }

    fn end(&mut self, scope: ProcessScope) {
        let (pid, status) = (self.pid, &mut self.status);
        // The holder ends what does not die now.
        let _ = processes::end(scope, DEATH_PATIENCE, |reaped, how| note(pid, status, reaped, how));
    }

    fn ending(&self, cut: Option<KillReason>) -> ExecEnding {
        match cut {
            Some(KillReason::Limit) => ExecEnding::TimedOut,
            Some(KillReason::Silence) => ExecEnding::Silent,
            Some(KillReason::HungUp) => ExecEnding::Signal { signal: KILLED },
            None => {
                self.status.and_then(ending_of).unwrap_or(ExecEnding::Signal { signal: KILLED })
            }
        }
    }
}

/// Records the status of the command when it is among the reaped processes.
fn note(command: u32, status: &mut Option<WaitStatus>, reaped: Pid, how: WaitStatus) {
    if u32::try_from(reaped.as_raw_pid()) == Ok(command) {
        *status = Some(how);
    }
}

fn ending_of(status: WaitStatus) -> Option<ExecEnding> {
    let code = status.exit_status().map(|code| ExecEnding::Code { code });
    code.or_else(|| status.terminating_signal().map(|signal| ExecEnding::Signal { signal }))
}

/// Reads once from a stream and returns the number of bytes. Closes a stream that has ended.
fn read_stream(pipe: &mut Option<impl Read>, stream: Stream, outbox: &mut Outbox) -> usize {
    let Some(open) = pipe else { return 0 };
    let mut chunk = [0; CHUNK];
    match open.read(&mut chunk) {
        Ok(count) if count > 0 => {
            let bytes = BASE64_STANDARD.encode(&chunk[..count]);
            outbox.push(&ExecEvent::Output { stream, bytes });
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

/// The standard input of the command.
#[derive(Debug)]
struct CommandInput {
    pipe: Option<ChildStdin>,
    bytes: Vec<u8>,
    written: usize,
}

impl CommandInput {
    fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.pipe.as_ref().map(|pipe| (pipe.as_fd(), PollFlags::OUT))
    }

    /// Writes as much as the command accepts, and closes the pipe after the last byte.
    fn write_some(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.write(&self.bytes[self.written..]) {
            Ok(count) => self.written += count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            // The command does not read its input.
            Err(_) => self.written = self.bytes.len(),
        }
        if self.written >= self.bytes.len() {
            self.pipe = None;
        }
    }
}
