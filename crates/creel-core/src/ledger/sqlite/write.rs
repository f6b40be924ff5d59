//! Writing a database: a turn in the queue, a transaction, and what happens on a full disk.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::Transaction;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};

use super::super::{LedgerError, Result};
use super::ballast::Ballast;
use super::database::{explain, while_locked};
use super::queue::{Turn, WriteQueue};
use super::wal::WalLimit;

/// The writers of one database.
#[derive(Debug)]
pub(crate) struct Writers {
    /// Where the file is.
    path: PathBuf,
    /// Connections to it.
    pool: SqlitePool,
    /// Those who want to write it, in all processes.
    queue: WriteQueue,
    /// Keeps the side file from growing without end.
    wal: WalLimit,
    /// The space that is kept for a full disk.
    ballast: Arc<Ballast>,
    /// Whether the database was opened on a disk without any room.
    has_no_room: bool,
}

/// A transaction that writes. Nobody else writes meanwhile; dropping it undoes it.
#[derive(Debug)]
pub(crate) struct Write {
    transaction: Transaction<'static, Sqlite>,
    /// Ends after the transaction: fields are dropped in their order.
    turn: Turn,
}

impl Writers {
    /// Makes the writers of a database that is open.
    pub(crate) fn new(
        path: &Path,
        pool: &SqlitePool,
        queue: WriteQueue,
        ballast: Arc<Ballast>,
    ) -> Self {
        let (path, pool) = (path.to_owned(), pool.clone());
        let wal = WalLimit::of(&path);
        Self { path, pool, queue, wal, ballast, has_no_room: false }
    }

    /// Lets every write fail: the database was opened on a disk without any room.
    pub(crate) fn without_room(mut self) -> Self {
        self.ballast.note_full();
        self.has_no_room = true;
        self
    }

    /// Waits for the turn and begins, as the only writer.
    pub(crate) async fn begin(&self) -> Result<Write> {
        if self.has_no_room {
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

    /// Makes a write durable; when this returns it is on disk.
    pub(crate) async fn commit(&self, write: Write) -> Result<()> {
        let Write { transaction, turn } = write;
        transaction.commit().await.map_err(|source| explain(&self.path, source))?;
        // While nobody else writes: the side file can be emptied only then.
        self.wal.keep(&self.pool).await;
        drop(turn);
        self.ballast.restore_sometimes();
        Ok(())
    }

    /// Does a write that ends something, or follows what has happened already. On a full disk it
    /// may use the space that is kept for that.
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
                // Also where there was none: another process may have freed it just now.
                work().await
            }
            other => other,
        }
    }

    /// Does a write that can be done without; on a full disk it fails.
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

    /// Does a write that begins something, unless the space to end it is missing.
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

/// An error that can mean that the disk is full.
pub(crate) trait WhenFull {
    /// Returns whether it means that.
    fn is_disk_full(&self) -> bool;
}

impl WhenFull for LedgerError {
    fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
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
