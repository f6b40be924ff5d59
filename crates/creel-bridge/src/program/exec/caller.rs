//! The caller of the command, and how `exec` detects that it hangs up.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::program::error::BridgeError;
use crate::program::lease::FileLease;
use crate::program::poll::is_ready_within;

/// How long the previous holder of the turn may take to clean up.
const TURN_PATIENCE: Duration = Duration::from_secs(30);
/// The interval between two attempts to take the turn.
const TURN_PERIOD: Duration = Duration::from_millis(5);
/// The interval between two checks of the sign of life.
const SIGN_PERIOD: Duration = Duration::from_millis(250);

/// The caller of the command. It is connected until standard input ends, if `exec` reads that, and
/// as long as there are signs of life, if `exec` checks for them.
#[derive(Debug)]
pub(super) struct Caller {
    input: io::Stdin,
    reads_input: bool,
    has_hung_up: bool,
    sign: Option<LifeSign>,
}

/// A file that the caller changes as long as it lives, and removes to stop the command.
#[derive(Debug)]
struct LifeSign {
    file: PathBuf,
    lease: FileLease,
    next_check_at: Instant,
}

impl Caller {
    /// Creates a caller whose standard input is read, or is not.
    pub(super) fn new(reads_input: bool) -> Self {
        Self { input: io::stdin(), reads_input, has_hung_up: false, sign: None }
    }

    /// Checks a file for signs of life from now on.
    pub(super) fn check_file(&mut self, file: PathBuf, patience: Duration) {
        let lease = FileLease::start(file.clone(), patience);
        self.sign = Some(LifeSign { file, lease, next_check_at: Instant::now() });
    }

    /// Returns when to check for a sign of life again.
    pub(super) fn next_check_at(&self) -> Option<Instant> {
        self.sign.as_ref().map(|sign| sign.next_check_at)
    }

    /// Checks for a sign of life, if a check is due.
    pub(super) fn check_sign(&mut self) {
        let Some(sign) = self.sign.as_mut().filter(|sign| sign.next_check_at <= Instant::now())
        else {
            return;
        };
        sign.next_check_at = Instant::now() + SIGN_PERIOD;
        if !sign.file.exists() || sign.lease.has_run_out() {
            self.has_hung_up = true;
        }
    }

    /// Returns what to poll for.
    pub(super) fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let is_connected = self.reads_input && !self.has_hung_up;
        is_connected.then(|| (self.input.as_fd(), PollFlags::IN))
    }

    /// Reads pending input, if there is any. Only its end has a meaning.
    pub(super) fn read_input(&mut self, ready: PollFlags) {
        if ready.is_empty() {
            return;
        }
        match rustix::io::read(&self.input, &mut [0; 4096]) {
            Ok(0) => self.has_hung_up = true,
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.has_hung_up = true,
        }
    }

    /// Returns whether the caller has hung up.
    pub(super) fn has_hung_up(&self) -> bool {
        self.has_hung_up
    }

    /// Waits until no other process has the turn that a file stands for, and takes it.
    pub(super) fn wait_for_turn(&mut self, file: &Path) -> Result<File, BridgeError> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let tried = format!("open {}", file.display());
        let turn = options.open(file).map_err(BridgeError::of(tried))?;
        let deadline = Instant::now() + TURN_PATIENCE;
        while let Err(refusal) = turn.try_lock() {
            if let TryLockError::Error(error) = refusal {
                return Err(BridgeError::of("wait for the turn")(error));
            }
            if Instant::now() >= deadline {
                return Err(BridgeError::Refused("what ran before does not end".to_owned()));
            }
            self.pause()?;
        }
        Ok(turn)
    }

    fn pause(&mut self) -> Result<(), BridgeError> {
        let Some((input, wanted)) = self.watched() else {
            std::thread::sleep(TURN_PERIOD);
            return Ok(());
        };
        if is_ready_within(input, wanted, TURN_PERIOD) {
            self.read_input(PollFlags::IN);
        }
        if self.has_hung_up {
            return Err(BridgeError::Refused("the caller of the command disconnected".to_owned()));
        }
        Ok(())
    }
}
