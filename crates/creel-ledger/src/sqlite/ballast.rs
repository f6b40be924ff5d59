//! The ballast: disk space that is reserved for when the ledger's disk is full.
//!
//! Without it, a full disk prevents creel from releasing the very thing that fills it: a release is
//! recorded before it happens, and there is no space for the record. The ballast is a file beside
//! the ledger that is created while there is space. It grows with the number of open records,
//! because the closing rows of all of them have to fit. It is deleted when a write that ends
//! something meets a full disk, and created again when space is available. Writes that begin
//! something are rejected instead: nothing new is created on a full disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use creel_model::clock::now_ms;
use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};
use tokio::sync::watch;
use tracing::{debug, warn};

/// The size of the ballast, unless the open records need more or the disk is small.
const USUAL: u64 = 4 << 20;
/// Space for the closing rows of one record, about twice of what they need.
const PER_RECORD: u64 = 3 << 10;
/// Space for everything else, mostly the write-ahead logs of the databases.
const OVERHEAD: u64 = 2 << 20;
/// The divisor of the disk size that limits the ballast on a small disk.
const PART: u64 = 8;
/// A disk with less free space than the ballast size divided by this counts as full.
const MARGIN: u64 = 16;
/// How often the free space is checked while a caller waits for a full disk.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between attempts to recreate a missing ballast.
const RETRY_MS: i64 = 1_000;

/// The ballast of one ledger, as this process sees it.
#[derive(Debug)]
pub(crate) struct Ballast {
    /// The file.
    path: PathBuf,
    /// An empty file that stands for the ballast while a full disk has used it up.
    used: PathBuf,
    /// Whether this process met a full disk that has had no space since.
    full: watch::Sender<bool>,
    /// Whether this process has ever met a full disk, or found the ballast used up by one.
    was_full: AtomicBool,
    /// Whether the ledger was opened read-only for lack of space.
    unwritable: AtomicBool,
    /// When the last attempt to recreate the file was made.
    tried_at_ms: AtomicI64,
    /// How many records are open, as far as this process knows.
    open_records: AtomicU64,
}

impl Ballast {
    /// Returns the ballast beside a ledger, and creates its file if there is space.
    pub(crate) fn beside(home: &Path) -> Self {
        let (path, used) = (home.join("ledger.ballast"), home.join("ledger.ballast-used"));
        // It is also missing where an older creel made the ledger, or where none can be made.
        let is_used_up = used.exists() && !path.exists();
        let ballast = Self {
            path,
            used,
            full: watch::Sender::new(false),
            was_full: AtomicBool::new(is_used_up),
            unwritable: AtomicBool::new(false),
            tried_at_ms: AtomicI64::new(0),
            open_records: AtomicU64::new(0),
        };
        ballast.restore();
        ballast
    }

    /// Makes the ballast large enough for the closing rows of this many records.
    pub(crate) fn reserve_for(&self, open_records: u64) {
        self.open_records.store(open_records, Ordering::Relaxed);
        self.restore();
    }

    fn size_on(&self, disk: &StatVfs) -> u64 {
        size_for(disk, self.open_records.load(Ordering::Relaxed))
    }

    /// Records that the disk is full.
    pub(crate) fn note_full(&self) {
        self.was_full.store(true, Ordering::Relaxed);
        self.full.send_if_modified(|full| !std::mem::replace(full, true));
    }

    /// Returns whether something may begin: the ballast exists, or as much space is free.
    pub(crate) fn allows_beginning(&self) -> bool {
        if self.path.exists() {
            return true;
        }
        self.restore();
        let home = self.path.parent().unwrap_or(&self.path);
        // If the free space is unknown, the write itself decides.
        statvfs(home).map_or(true, |disk| free_on(&disk) >= self.size_on(&disk))
    }

    /// Records that the disk is full and frees the ballast. Returns whether there was any.
    pub(crate) fn release(&self) -> bool {
        self.note_full();
        let removed = fs::remove_file(&self.path);
        // Best effort: without it, the next process does not know why the ballast is missing.
        let _ = File::create(&self.used);
        match removed {
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

    /// Recreates the file if it is missing and there is space, at most once per interval.
    pub(crate) fn restore_sometimes(&self) {
        let (now, last) = (now_ms(), self.tried_at_ms.load(Ordering::Relaxed));
        if now.abs_diff(last) >= RETRY_MS.unsigned_abs() {
            self.tried_at_ms.store(now, Ordering::Relaxed);
            self.restore();
        }
    }

    fn restore(&self) {
        match make(&self.path, |disk| self.size_on(disk)) {
            // A file that was there all the time says nothing about the rest of the disk.
            Ok(true) if self.is_short() => {}
            Ok(true) => {
                let _ = fs::remove_file(&self.used);
                self.full.send_if_modified(|full| std::mem::replace(full, false));
            }
            Ok(false) => {}
            Err(error) => debug!(%error, "no space can be kept for a full disk"),
        }
    }

    /// Returns whether this process met a full disk that has had no space since.
    pub(crate) fn is_disk_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Returns whether this process has ever met a full disk.
    pub(crate) fn was_disk_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    /// Records that the ledger was opened read-only for lack of space.
    pub(crate) fn note_unwritable(&self) {
        self.note_full();
        self.unwritable.store(true, Ordering::Relaxed);
    }

    /// Returns whether the ledger was opened read-only for lack of space.
    pub(crate) fn is_unwritable(&self) -> bool {
        self.unwritable.load(Ordering::Relaxed)
    }

    /// Checks the free space, and records a disk that is almost full. Returns whether it is.
    ///
    /// Whatever fills the disk hits the limit before creel's own next write does.
    pub(crate) fn check_disk(&self) -> bool {
        let is_full = self.is_short();
        if is_full {
            self.note_full();
        }
        is_full
    }

    /// Returns whether next to nothing is free.
    fn is_short(&self) -> bool {
        let home = self.path.parent().unwrap_or(&self.path);
        statvfs(home).is_ok_and(|disk| free_on(&disk) < size_for(&disk, 0) / MARGIN)
    }

    /// Waits until the disk is full.
    pub(crate) async fn disk_full(&self) {
        let mut full = self.full.subscribe();
        loop {
            // The sender lives as long as this borrow, so the wait cannot fail.
            let noted = full.wait_for(|full| *full);
            if tokio::time::timeout(CHECK_INTERVAL, noted).await.is_ok() || self.check_disk() {
                return;
            }
        }
    }
}

/// Creates or grows the file if it is missing or too small, and twice the missing size is free.
/// Returns whether the file exists.
fn make(path: &Path, size_on: impl Fn(&StatVfs) -> u64) -> io::Result<bool> {
    let existing = fs::metadata(path).map(|file| file.len()).ok();
    let home = path.parent().unwrap_or(path);
    let disk = statvfs(home)?;
    let size = size_on(&disk);
    let missing = size.saturating_sub(existing.unwrap_or(0));
    if missing == 0 || free_on(&disk) < 2 * missing {
        return Ok(existing.is_some());
    }
    if existing.is_some() {
        if let Err(error) = grow(path, size) {
            debug!(%error, "the space reserved for a full disk cannot grow");
        }
        return Ok(true);
    }
    // Use another name first: a partial ballast would count as a complete one.
    let draft = path.with_extension(format!("ballast-{}", std::process::id()));
    let created = fill(&draft, size).and_then(|()| fs::rename(&draft, path));
    if created.is_err() {
        // The draft exists only if the file could be created.
        let _ = fs::remove_file(&draft);
    }
    created.map(|()| true)
}

/// Grows an existing file. It does not create one, because another process may just have freed it.
fn grow(path: &Path, size: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, size)?)
}

fn free_on(disk: &StatVfs) -> u64 {
    disk.f_bavail.saturating_mul(disk.f_frsize)
}

/// Returns how much to reserve on a disk for the closing rows of this many records.
fn size_for(disk: &StatVfs, open_records: u64) -> u64 {
    let needed = open_records.saturating_mul(PER_RECORD).saturating_add(OVERHEAD);
    needed.max(USUAL).min(disk.f_blocks.saturating_mul(disk.f_frsize) / PART)
}

/// Creates a file whose blocks are really allocated.
fn fill(path: &Path, size: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => write_out(&mut file, size),
        Err(error) => Err(error.into()),
    }
}

/// Writes the file out, for file systems that cannot reserve space.
///
/// The bytes need not be incompressible: a compressing file system cannot predict its free space
/// anyway.
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
        assert_eq!((file.len(), file.blocks() * 512 >= USUAL), (USUAL, true));
        assert!(!ballast.is_disk_full());

        assert!(ballast.release());
        assert!(ballast.is_disk_full() && ballast.was_disk_full() && !ballast.path.exists());
        assert!(ballast.used.exists(), "the next process would not know why it is missing");
        assert!(!ballast.release(), "it can be used once");
        ballast.restore();
        assert!(!ballast.is_disk_full() && ballast.path.exists());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "a draft was left");
    }

    #[test]
    fn a_missing_ballast_alone_does_not_mean_that_the_disk_was_full() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("ledger.db"), "of an older creel").unwrap();
        assert!(!Ballast::beside(home.path()).was_disk_full());
        fs::remove_file(home.path().join("ledger.ballast")).unwrap();
        fs::write(home.path().join("ledger.ballast-used"), "").unwrap();
        assert!(Ballast::beside(home.path()).was_disk_full());
        assert!(!Ballast::beside(home.path()).was_disk_full(), "it was made again");
    }

    #[test]
    fn the_ballast_grows_with_the_open_records_and_keeps_its_size() {
        let home = tempfile::tempdir().unwrap();
        let size = || fs::metadata(home.path().join("ledger.ballast")).unwrap().len();
        let ballast = Ballast::beside(home.path());
        ballast.reserve_for(500);
        assert_eq!(size(), USUAL);
        ballast.reserve_for(5_000);
        let large = 5_000 * PER_RECORD + OVERHEAD;
        assert_eq!(size(), large);
        // Another process that has not counted the records yet.
        Ballast::beside(home.path());
        assert_eq!(size(), large);
        assert!(ballast.release());
        ballast.restore();
        assert_eq!(size(), large, "it was recreated with another size");
    }

    #[tokio::test]
    async fn a_full_disk_wakes_its_waiters() {
        let home = tempfile::tempdir().unwrap();
        let ballast = Ballast::beside(home.path());
        let full = ballast.disk_full();
        tokio::pin!(full);
        assert!(futures::poll!(&mut full).is_pending());
        ballast.release();
        full.await;
    }
}
