//! A size limit for SQLite's write-ahead log.
//!
//! SQLite checkpoints the write-ahead log (`-wal`) after every thousand pages, but restarts it only
//! when it has no readers. With continuous readers it grows without bound. Once it is large, a
//! writer that has the turn therefore waits briefly for the readers. Readers that arrive in the
//! meantime find everything in the database and no longer need the log.
//!
//! On a full disk the log is restarted much earlier, because the reserved space must be enough for
//! all rows that are still to be written. It is not truncated then: whatever fills the disk would
//! take the freed space.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sqlx::sqlite::SqlitePool;
use tracing::debug;

/// The size from which the log is truncated. SQLite itself keeps it at four megabytes. Tests write
/// less.
const LIMIT: u64 = if cfg!(test) { 1 << 20 } else { 16 << 20 };

/// The number of writes on a full disk after which the log is restarted. One write may be a whole
/// batch of records, and the log must stay small beside the reserved space.
const WRITES_WHEN_FULL: u32 = 2;

/// Keeps one write-ahead log below its limit, as far as readers allow.
#[derive(Debug)]
pub(super) struct WalLimit {
    /// The write-ahead log.
    path: PathBuf,
    /// The size at which the next truncation is attempted. A reader that never ends must not delay
    /// every write.
    next_at: AtomicU64,
    /// The number of writes on a full disk so far.
    writes_when_full: AtomicU32,
}

impl WalLimit {
    /// Creates the limit for a database's write-ahead log.
    pub(super) fn of(database: &Path) -> Self {
        let mut path = OsString::from(database);
        path.push("-wal");
        let (next_at, writes_when_full) = (AtomicU64::new(LIMIT), AtomicU32::new(0));
        Self { path: path.into(), next_at, writes_when_full }
    }

    /// Truncates the log if it is too large, or restarts it now and then on a full disk. The caller
    /// must have the turn to write.
    pub(super) async fn limit(&self, pool: &SqlitePool, is_disk_full: bool) {
        if is_disk_full {
            let writes = self.writes_when_full.fetch_add(1, Ordering::Relaxed);
            if writes % WRITES_WHEN_FULL == WRITES_WHEN_FULL - 1 {
                checkpoint(pool, "PRAGMA wal_checkpoint(RESTART)").await;
            }
            return;
        }
        if self.size() < self.next_at.load(Ordering::Relaxed) {
            return;
        }
        checkpoint(pool, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        let left = self.size();
        self.next_at.store(left.saturating_add(LIMIT), Ordering::Relaxed);
    }

    fn size(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

/// Checkpoints everything, waiting up to one second for readers.
async fn checkpoint(pool: &SqlitePool, statement: &'static str) {
    let checkpointed = async {
        let mut connection = pool.acquire().await?;
        sqlx::query("PRAGMA busy_timeout = 1000").execute(&mut *connection).await?;
        let checkpointed = sqlx::query(statement).execute(&mut *connection).await;
        sqlx::query("PRAGMA busy_timeout = 10000").execute(&mut *connection).await?;
        checkpointed
    };
    if let Err(error) = checkpointed.await {
        debug!(%error, "the ledger's write-ahead log could not be checkpointed");
    }
}

#[cfg(test)]
mod tests {
    use super::super::database::connect;
    use super::*;

    /// Writes rows and returns the final size of the log.
    async fn size_after(rows: u32, is_disk_full: bool) -> u64 {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("some.db");
        let pool = connect(&path).await.unwrap();
        sqlx::query("CREATE TABLE rows (text TEXT) STRICT").execute(&pool).await.unwrap();
        let wal = WalLimit::of(&path);
        for _ in 0..rows {
            let insert = sqlx::query("INSERT INTO rows (text) VALUES (printf('%02000d', 0))");
            insert.execute(&pool).await.unwrap();
            wal.limit(&pool, is_disk_full).await;
        }
        wal.size()
    }

    #[tokio::test]
    async fn the_log_is_restarted_early_on_a_full_disk() {
        let (usual, full) = (size_after(100, false).await, size_after(100, true).await);
        assert!(usual > 4 * full, "{usual} {full}");
        assert!(full > 0, "the log was truncated, and its space is free for others");
    }
}
