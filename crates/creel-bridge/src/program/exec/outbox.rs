//! Frames on their way out.
//!
//! Nothing here ever blocks for longer than it is told: a pipe that polls as
//! writable takes at least one page without blocking, so at most that much is
//! written at once. The flags of the standard output stay as they are, because
//! others may share it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use creel_bridge::exec::Heard;
use creel_bridge::frame;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::program::failure::Failure;
use crate::program::lookout::wait_for;

/// How much may wait before the command is not read any more.
const ROOM: usize = 256 << 10;
/// What a writable pipe takes without blocking.
const PIECE: usize = 4096;

/// Frames that wait to be written to the standard output.
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
    pub(super) fn push(&mut self, heard: &Heard) {
        self.last_number += 1;
        let line = frame::encode(self.last_number, heard)
            .expect("what is heard of a command has a JSON form");
        self.waiting.extend(line);
    }

    /// Returns whether more may be added now.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < ROOM
    }

    /// Returns whether nobody listens any more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns what to poll for; a broken end shows whatever is asked for.
    pub(super) fn watched(&self) -> (BorrowedFd<'_>, PollFlags) {
        let wanted = if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        (self.output.as_fd(), wanted)
    }

    /// Writes what can be written; returns whether something was.
    pub(super) fn write(&mut self, ready: PollFlags) -> bool {
        // A pipe without a reader shows the first, a closed socket the second.
        if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            self.is_broken = true;
        }
        if self.is_broken || self.waiting.is_empty() || ready.is_empty() {
            return false;
        }
        let (first, _) = self.waiting.as_slices();
        match rustix::io::write(&self.output, &first[..first.len().min(PIECE)]) {
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

    /// Writes everything that waits; gives up when nothing is taken for so long.
    pub(super) fn deliver(&mut self, patience: Duration) -> Result<(), Failure> {
        let mut deadline = Instant::now() + patience;
        while !self.waiting.is_empty() {
            let ready = wait_for(&[self.watched()], Some(deadline));
            if self.write(ready[0]) {
                deadline = Instant::now() + patience;
            }
            if self.is_broken || Instant::now() >= deadline {
                return Err(Failure::Refused("whoever ordered the command is gone".to_owned()));
            }
        }
        Ok(())
    }
}
