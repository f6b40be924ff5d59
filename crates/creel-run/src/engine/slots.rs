//! Release slots: however many runs end at once, only a few of them release at a time.
//!
//! A release searches the whole machine and writes to the ledger several times.
//! Hundreds of concurrent releases would slow each other down beyond their
//! limits. The slots are locks on files next to the ledger, so the slot of a
//! killed process is free at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;
use tracing::warn;

/// How many runs of one ledger release at a time.
const SLOTS: usize = 4;
/// How long to wait for a slot. After that the release runs without one, which is only slower.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// A slot, held until this value is dropped.
#[derive(Debug)]
pub(super) struct ReleaseSlot {
    /// Holds the lock while it is open.
    _lock: Option<File>,
}

/// Waits for a slot of the ledger in this directory.
pub(super) async fn acquire(home: &Path) -> ReleaseSlot {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match try_acquire(home) {
            Ok(Some(lock)) => return ReleaseSlot { _lock: Some(lock) },
            Ok(None) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                warn!(%error, "release slots cannot be acquired");
                break;
            }
        }
    }
    ReleaseSlot { _lock: None }
}

fn try_acquire(home: &Path) -> io::Result<Option<File>> {
    let directory = home.join("turns");
    std::fs::create_dir_all(&directory)?;
    for number in 0..SLOTS {
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
    async fn slots_are_limited_and_reused() {
        let home = tempfile::tempdir().unwrap();
        let mut slots = Vec::new();
        for _ in 0..SLOTS {
            slots.push(acquire(home.path()).await);
        }
        assert!(try_acquire(home.path()).unwrap().is_none());
        slots.pop();
        assert!(try_acquire(home.path()).unwrap().is_some());
    }
}
