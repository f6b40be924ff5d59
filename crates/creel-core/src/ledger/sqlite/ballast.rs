//! The ballast: space on the ledger's disk that is kept for the day it is full.
//!
//! Without it a full disk keeps creel from releasing the very thing that fills it: a release is
//! recorded before it happens, and there is no room for the record. The ballast is a file beside
//! the ledger that is made while there is room. It is deleted when a write that ends something
//! meets a full disk, and made again when the space has come back. Writes that begin something
//! are refused instead: on a full disk nothing new is created.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::clock::now_ms;

/// Enough for the closing rows of some ten thousand open records.
const MOST: u64 = 4 << 20;
/// On a small disk, one part of so many.
const PART: u64 = 8;
/// A disk with less room than this part of the ballast counts as full.
const MARGIN: u64 = 16;
/// How often it is looked whether the disk is full, while somebody waits for that.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a ballast that is missing is made again, at most.
const RETRY_MS: i64 = 1_000;

/// The ballast of one ledger, as this process sees it.
#[derive(Debug)]
pub(crate) struct Ballast {
    /// The file.
    path: PathBuf,
    /// Whether this process has met a full disk, and the disk has not had room since.
    full: watch::Sender<bool>,
    /// Whether this process has ever met a full disk.
    was_full: AtomicBool,
    /// When it was last tried to make the file again.
    tried_at_ms: AtomicI64,
}

impl Ballast {
    /// Returns the ballast beside a ledger, making it where there is room for it.
    pub(crate) fn beside(home: &Path) -> Self {
        let ballast = Self {
            path: home.join("ledger.ballast"),
            full: watch::Sender::new(false),
            was_full: AtomicBool::new(false),
            tried_at_ms: AtomicI64::new(0),
        };
        ballast.restore();
        ballast
    }

    /// Notes that the disk is full.
    pub(crate) fn note_full(&self) {
        self.was_full.store(true, Ordering::Relaxed);
        self.full.send_if_modified(|full| !std::mem::replace(full, true));
    }

    /// Returns whether something may begin: the space to end it is there, or as much is free.
    pub(crate) fn allows_beginning(&self) -> bool {
        if self.path.exists() {
            return true;
        }
        self.restore();
        let home = self.path.parent().unwrap_or(&self.path);
        // A disk that cannot be judged is judged by the write itself.
        statvfs(home).map_or(true, |disk| free_on(&disk) >= size_for(&disk))
    }

    /// Notes that the disk is full and gives the space free; returns whether there was any.
    pub(crate) fn release(&self) -> bool {
        self.note_full();
        match fs::remove_file(&self.path) {
            Ok(()) => {
                warn!("the ledger's disk is full: the space kept for this case is used now");
                true
            }
            Err(error) => {
                debug!(%error, "no space is kept for a full disk any more");
                false
            }
        }
    }

    /// Makes the file again if it is missing and there is room, now and then.
    pub(crate) fn restore_sometimes(&self) {
        let (now, last) = (now_ms(), self.tried_at_ms.load(Ordering::Relaxed));
        if now.abs_diff(last) >= RETRY_MS.unsigned_abs() {
            self.tried_at_ms.store(now, Ordering::Relaxed);
            self.restore();
        }
    }

    fn restore(&self) {
        match make(&self.path) {
            Ok(true) => {
                self.full.send_if_modified(|full| std::mem::replace(full, false));
            }
            Ok(false) => {}
            Err(error) => debug!(%error, "no space can be kept for a full disk"),
        }
    }

    /// Returns whether this process has met a full disk that has had no room since.
    pub(crate) fn is_disk_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Returns whether this process has ever met a full disk.
    pub(crate) fn was_disk_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    /// Looks how much is free, and notes where that is next to nothing; returns whether it is.
    ///
    /// What fills the disk meets its end before creel's own next write does.
    pub(crate) fn check_disk(&self) -> bool {
        let home = self.path.parent().unwrap_or(&self.path);
        let is_full = statvfs(home).is_ok_and(|disk| free_on(&disk) < size_for(&disk) / MARGIN);
        if is_full {
            self.note_full();
        }
        is_full
    }

    /// Waits until the disk is full.
    pub(crate) async fn disk_full(&self) {
        let mut full = self.full.subscribe();
        loop {
            // The sender lives as long as this borrow: the wait cannot fail.
            let noted = full.wait_for(|full| *full);
            if tokio::time::timeout(LOOK_EVERY, noted).await.is_ok() || self.check_disk() {
                return;
            }
        }
    }
}

/// Makes the file if it is missing and twice its size is free; returns whether it is there.
fn make(path: &Path) -> io::Result<bool> {
    if path.exists() {
        return Ok(true);
    }
    let home = path.parent().unwrap_or(path);
    let disk = statvfs(home)?;
    let size = size_for(&disk);
    if size == 0 || free_on(&disk) < 2 * size {
        return Ok(false);
    }
    // Under another name first: half a ballast would count as a whole one.
    let draft = path.with_extension(format!("ballast-{}", std::process::id()));
    let made = fill(&draft, size).and_then(|()| fs::rename(&draft, path));
    if made.is_err() {
        // Whether it was begun depends on how far it came.
        let _ = fs::remove_file(&draft);
    }
    made.map(|()| true)
}

fn free_on(disk: &StatVfs) -> u64 {
    disk.f_bavail.saturating_mul(disk.f_frsize)
}

fn size_for(disk: &StatVfs) -> u64 {
    MOST.min(disk.f_blocks.saturating_mul(disk.f_frsize) / PART)
}

/// Makes a file whose blocks are really taken.
fn fill(path: &Path, size: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => write_out(&mut file, size),
        Err(error) => Err(error.into()),
    }
}

/// For file systems that cannot reserve: bytes that no compression makes small are not needed,
/// because those that compress cannot say in advance what is free either.
fn write_out(file: &mut File, size: u64) -> io::Result<()> {
    let block = [0x5a_u8; 64 << 10];
    let mut left = size;
    while left > 0 {
        let part = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
        file.write_all(&block[..part])?;
        left -= part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_takes_real_blocks_and_comes_back_when_it_was_used() {
        use std::os::unix::fs::MetadataExt;
        let home = tempfile::tempdir().unwrap();
        let ballast = Ballast::beside(home.path());
        let file = fs::metadata(&ballast.path).unwrap();
        assert_eq!((file.len(), file.blocks() * 512 >= MOST), (MOST, true));
        assert!(!ballast.is_disk_full());

        assert!(ballast.release());
        assert!(ballast.is_disk_full() && ballast.was_disk_full() && !ballast.path.exists());
        assert!(!ballast.release(), "it can be used once");
        ballast.restore();
        assert!(!ballast.is_disk_full() && ballast.path.exists());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "a draft was left");
    }

    #[tokio::test]
    async fn whoever_waits_for_a_full_disk_is_woken() {
        let home = tempfile::tempdir().unwrap();
        let ballast = Ballast::beside(home.path());
        let full = ballast.disk_full();
        tokio::pin!(full);
        assert!(futures::poll!(&mut full).is_pending());
        ballast.release();
        full.await;
    }
}
