//! Database writes: a turn in the queue, a transaction, and the handling of a full disk.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::Transaction;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};

use crate::Result;
use crate::error::{LedgerError, WhenFull};

use super::ballast::Ballast;
use super::database::{explain, while_locked};
use super::queue::{WriteQueue, WriteTurn};
use super::wal::WalLimit;

/// The writers of one database.
#[derive(Debug)]
pub(crate) struct Writers {
    /// The database file.
    path: PathBuf,
    /// Connections to it.
    pool: SqlitePool,
    /// The queue of writers in all processes.
    queue: WriteQueue,
    /// Keeps the write-ahead log from growing without bound.
    wal: WalLimit,
    /// The space reserved for a full disk.
    ballast: Arc<Ballast>,
    /// Whether the database was opened on a disk without any free space.
    has_no_space: bool,
}

/// A write transaction. There is no other writer while it lives. Dropping it rolls it back.
#[derive(Debug)]
pub(crate) struct Write {
    transaction: Transaction<'static, Sqlite>,
    /// Ends after the transaction, because fields are dropped in order.
    turn: WriteTurn,
}

impl Writers {
    /// Creates the writers of an open database.
    pub(crate) fn new(
        path: &Path,
        pool: &SqlitePool,
        queue: WriteQueue,
        ballast: Arc<Ballast>,
    ) -> Self {
        let (path, pool) = (path.to_owned(), pool.clone());
        let wal = WalLimit::of(&path);
        Self { path, pool, queue, wal, ballast, has_no_space: false }
    }

    /// Makes every write fail: the database was opened on a disk without any free space.
    pub(crate) fn without_space(mut self) -> Self {
        self.ballast.note_unwritable();
        self.has_no_space = true;
        self
    }

    /// Reserves space for the closing rows of this many records.
    pub(crate) fn reserve_for(&self, open_records: u64) {
        self.ballast.reserve_for(open_records);
    }

    /// Waits for the turn and begins a transaction as the only writer.
    pub(crate) async fn begin(&self) -> Result<Write> {
        if self.has_no_space {
            return Err(LedgerError::DiskFull { path: self.path.clone() });
        }
        let lock = || self.path.with_extension("lock");
        let in_queue = |source| LedgerError::Home { path: lock(), source };
        let turn = self.queue.turn().await.map_err(in_queue)?;
        let transaction = while_locked(|| self.begin_now()).await?;
        Ok(Write { transaction, turn })
    }

    async fn begin_now(&self) -> Result<Transaction<'static, Sqlite>> {
        let begun = self.pool.begin_with("BEGIN IMMEDIATE").await;
        begun.map_err(|source| explain(&self.path, source))
    }

    /// Commits a write. It is on disk when this returns.
    pub(crate) async fn commit(&self, write: Write) -> Result<()> {
        let Write { transaction, turn } = write;
        transaction.commit().await.map_err(|source| explain(&self.path, source))?;
        // The write-ahead log can be truncated only while there is no other writer.
        self.wal.limit(&self.pool, self.ballast.is_disk_full()).await;
        drop(turn);
        self.ballast.restore_sometimes();
        Ok(())
    }

    /// Runs a write that ends something, or that records what has already happened.
    ///
    /// On a full disk it may use the reserved space.
    pub(crate) async fn ending<T, E: WhenFull, F>(
        &self,
        mut work: impl FnMut() -> F,
    ) -> std::result::Result<T, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
    {
        match work().await {
            Err(error) if error.is_disk_full() => {
                self.ballast.release();
                // Retry even if there was no ballast: another process may have just freed it.
                work().await
            }
            other => other,
        }
    }

    /// Runs a write that is not essential. On a full disk it fails.
    pub(crate) async fn optional<T, E: WhenFull, F>(
        &self,
        work: impl FnOnce() -> F,
    ) -> std::result::Result<T, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
    {
        let done = work().await;
        if matches!(&done, Err(error) if error.is_disk_full()) {
            self.ballast.note_full();
        }
        done
    }

    /// Runs a write that begins something, unless the space to end it is missing.
    pub(crate) async fn beginning<T, F>(&self, work: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        if !self.ballast.allows_beginning() {
            self.ballast.note_full();
            return Err(LedgerError::DiskFull { path: self.path.clone() });
        }
        work().await
    }
}

impl Deref for Write {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.transaction
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }
}
