//! Whoever ordered the command, as far as it is heard.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::program::failure::Failure;
use crate::program::lease::Lease;
use crate::program::lookout::is_ready_within;

/// How long the last one to have the turn may take to clear away.
const TURN_PATIENCE: Duration = Duration::from_secs(30);
/// How often the turn is asked for.
const TURN_PERIOD: Duration = Duration::from_millis(5);
/// How often the sign of life is looked at.
const SIGN_PERIOD: Duration = Duration::from_millis(250);

/// Whoever ordered the command: connected as long as the standard input does not end, where that
/// is listened to, and as long as there are signs of life, where they are looked for.
#[derive(Debug)]
pub(super) struct Caller {
    input: io::Stdin,
    is_heard: bool,
    has_hung_up: bool,
    sign: Option<Sign>,
}

/// A file that changes for as long as whoever ordered the command lives, and goes when it does
/// not want the command any more.
#[derive(Debug)]
struct Sign {
    file: PathBuf,
    lease: Lease,
    look_at: Instant,
}

impl Caller {
    /// Listens, or does not.
    pub(super) fn new(is_heard: bool) -> Self {
        Self { input: io::stdin(), is_heard, has_hung_up: false, sign: None }
    }

    /// Looks for signs of life in a file.
    pub(super) fn give_signs_by(&mut self, file: PathBuf, patience: Duration) {
        let lease = Lease::start(file.clone(), patience);
        self.sign = Some(Sign { file, lease, look_at: Instant::now() });
    }

    /// Returns when to look for a sign of life again.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.sign.as_ref().map(|sign| sign.look_at)
    }

    /// Looks for a sign of life, if it is time to.
    pub(super) fn look(&mut self) {
        let Some(sign) = self.sign.as_mut().filter(|sign| sign.look_at <= Instant::now()) else {
            return;
        };
        sign.look_at = Instant::now() + SIGN_PERIOD;
        if !sign.file.exists() || sign.lease.has_run_out() {
            self.has_hung_up = true;
        }
    }

    /// Returns what to poll for.
    pub(super) fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let listens = self.is_heard && !self.has_hung_up;
        listens.then(|| (self.input.as_fd(), PollFlags::IN))
    }

    /// Hears what came in, if something did; it has no meaning but its end.
    pub(super) fn hear(&mut self, ready: PollFlags) {
        if ready.is_empty() {
            return;
        }
        match rustix::io::read(&self.input, &mut [0; 4096]) {
            Ok(0) => self.has_hung_up = true,
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.has_hung_up = true,
        }
    }

    /// Returns whether it has hung up.
    pub(super) fn has_hung_up(&self) -> bool {
        self.has_hung_up
    }

    /// Waits until nobody else has the turn that a file stands for, and takes it.
    pub(super) fn wait_for_turn(&mut self, file: &Path) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let tried = format!("open {}", file.display());
        let turn = options.open(file).map_err(Failure::of(tried))?;
        let deadline = Instant::now() + TURN_PATIENCE;
        while let Err(refusal) = turn.try_lock() {
            if let TryLockError::Error(error) = refusal {
                return Err(Failure::of("wait for the turn")(error));
            }
            if Instant::now() >= deadline {
                return Err(Failure::Refused("what ran before does not end".to_owned()));
            }
            self.pause()?;
        }
        Ok(turn)
    }

    fn pause(&mut self) -> Result<(), Failure> {
        let Some((input, wanted)) = self.watched() else {
            std::thread::sleep(TURN_PERIOD);
            return Ok(());
        };
        if is_ready_within(input, wanted, TURN_PERIOD) {
            self.hear(PollFlags::IN);
        }
        if self.has_hung_up {
            return Err(Failure::Refused("whoever ordered the command hung up".to_owned()));
        }
        Ok(())
    }
}
