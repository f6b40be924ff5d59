//! The queue of outgoing frames.
//!
//! Nothing here blocks for longer than the given time. A pipe that polls as writable accepts at
//! least one page without blocking, so at most that much is written at once. The flags of standard
//! output stay unchanged, because other processes may share it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use creel_bridge::exec::ExecEvent;
use creel_bridge::frame;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::program::error::BridgeError;
use crate::program::poll::wait_for;

/// The queue length at which the command's output is no longer read.
const ROOM: usize = 256 << 10;
/// The number of bytes that a writable pipe accepts without blocking.
const MAX_WRITE: usize = 4096;

/// Frames that wait to be written to standard output.
#[derive(Debug)]
pub(super) struct Outbox {
    output: io::Stdout,
    waiting: VecDeque<u8>,
    last_number: u64,
    is_broken: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { output: io::stdout(), waiting: VecDeque::new(), last_number: 0, is_broken: false }
    }
}

impl Outbox {
    /// Adds a frame.
    pub(super) fn push(&mut self, event: &ExecEvent) {
        self.last_number += 1;
        let line = frame::encode(self.last_number, event)
            .expect("what is heard of a command has a JSON form");
        self.waiting.extend(line);
    }

    /// Returns whether more frames may be added now.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < ROOM
    }

    /// Returns whether the output has no reader any more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns what to poll for. A broken pipe is reported whatever is asked for.
    pub(super) fn watched(&self) -> (BorrowedFd<'_>, PollFlags) {
        let wanted = if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        (self.output.as_fd(), wanted)
    }

    /// Writes what can be written, and returns whether something was written.
    pub(super) fn write(&mut self, ready: PollFlags) -> bool {
        // A pipe without a reader sets the first flag, a closed socket the second.
        if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            self.is_broken = true;
        }
        if self.is_broken || self.waiting.is_empty() || ready.is_empty() {
            return false;
        }
        let (first, _) = self.waiting.as_slices();
        match rustix::io::write(&self.output, &first[..first.len().min(MAX_WRITE)]) {
            Ok(count) => {
                self.waiting.drain(..count);
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => false,
            Err(_) => {
                self.is_broken = true;
                false
            }
        }
    }

    /// Writes all waiting frames. Gives up when nothing is accepted for `patience`.
    pub(super) fn deliver(&mut self, patience: Duration) -> Result<(), BridgeError> {
        let mut deadline = Instant::now() + patience;
        while !self.waiting.is_empty() {
            let ready = wait_for(&[self.watched()], Some(deadline));
            if self.write(ready[0]) {
                deadline = Instant::now() + patience;
            }
            if self.is_broken || Instant::now() >= deadline {
                return Err(BridgeError::Refused("the caller of the command is gone".to_owned()));
            }
        }
        Ok(())
    }
}
