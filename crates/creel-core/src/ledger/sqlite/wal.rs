//! A limit for SQLite's side file.
//!
//! SQLite copies the side file (`-wal`) back after every thousand pages, but begins it anew only
//! at an instant at which nobody reads it. Where there is always some reader it grows without
//! end. So once it is large, a writer that has the turn waits a moment for the readers: those that
//! come meanwhile find everything copied back and do not need the side file any more.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::sqlite::SqlitePool;
use tracing::debug;

/// From which size on it is emptied; SQLite itself keeps it at four megabytes. Tests write less.
const LIMIT: u64 = if cfg!(test) { 1 << 20 } else { 16 << 20 };

/// Keeps one side file below its limit, as far as readers allow.
#[derive(Debug)]
pub(super) struct WalLimit {
    /// The side file.
    path: PathBuf,
    /// From which size on it is tried next: a reader that does not end must not delay every
    /// write.
    next_at: AtomicU64,
}

impl WalLimit {
    /// Makes the limit of a database's side file.
    pub(super) fn of(database: &Path) -> Self {
        let mut path = OsString::from(database);
        path.push("-wal");
        Self { path: path.into(), next_at: AtomicU64::new(LIMIT) }
    }

    /// Empties the file if it is too large. Only for who has the turn to write.
    pub(super) async fn keep(&self, pool: &SqlitePool) {
        let size = self.size();
        if size < self.next_at.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = empty(pool).await {
            debug!(%error, "the ledger's side file could not be emptied");
        }
        let left = self.size();
        self.next_at.store(left.saturating_add(LIMIT), Ordering::Relaxed);
    }

    fn size(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

/// Copies everything back and cuts the file, waiting a second for those who read it.
async fn empty(pool: &SqlitePool) -> sqlx::Result<()> {
    let mut connection = pool.acquire().await?;
    sqlx::query("PRAGMA busy_timeout = 1000").execute(&mut *connection).await?;
    let emptied = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut *connection).await;
    sqlx::query("PRAGMA busy_timeout = 10000").execute(&mut *connection).await?;
    emptied.map(drop)
}
