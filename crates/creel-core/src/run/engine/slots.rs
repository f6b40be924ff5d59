//! Turns at giving back: however many runs end at once, only a few of them release at a time.
//!
//! A release looks through the whole machine and writes to the ledger several times. Hundreds of
//! them at once would keep each other from ending within their limits. The turns are locks on
//! files beside the ledger: one that is held by a process that was killed is free at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;
use tracing::warn;

/// How many runs of one ledger give back at a time.
const TURNS: usize = 4;
/// How long a turn is waited for; then it is done without, which is only slower.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    /// Holds the lock as long as it is open.
    _lock: Option<File>,
}

/// Waits for a turn among the runs of the ledger in this directory.
pub(super) async fn take(home: &Path) -> Turn {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match try_take(home) {
            Ok(Some(lock)) => return Turn { _lock: Some(lock) },
            Ok(None) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                warn!(%error, "turns at giving back cannot be taken");
                break;
            }
        }
    }
    Turn { _lock: None }
}

fn try_take(home: &Path) -> io::Result<Option<File>> {
    let directory = home.join("turns");
    std::fs::create_dir_all(&directory)?;
    for number in 0..TURNS {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600);
        let file = file.open(directory.join(number.to_string()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn so_many_have_a_turn_at_a_time_and_the_next_one_when_one_ends() {
        let home = tempfile::tempdir().unwrap();
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(take(home.path()).await);
        }
        assert!(try_take(home.path()).unwrap().is_none());
        turns.pop();
        assert!(try_take(home.path()).unwrap().is_some());
    }
}
