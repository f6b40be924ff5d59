//! One write: a turn in the queue and a transaction.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use sqlx::Transaction;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};

use super::super::{LedgerError, Result};
use super::database::{explain, while_locked};
use super::queue::{Turn, WriteQueue};

/// A transaction that writes. Nobody else writes meanwhile; dropping it undoes it.
#[derive(Debug)]
pub(crate) struct Write {
    transaction: Transaction<'static, Sqlite>,
    /// Ends after the transaction: fields are dropped in their order.
    turn: Turn,
}

impl Write {
    /// Waits for the turn and begins, as the only writer.
    pub(crate) async fn begin(path: &Path, pool: &SqlitePool, queue: &WriteQueue) -> Result<Self> {
        let in_queue = |source| LedgerError::Home { path: path.with_extension("lock"), source };
        let turn = queue.turn().await.map_err(in_queue)?;
        let transaction = while_locked(|| begin(path, pool)).await?;
        Ok(Self { transaction, turn })
    }

    /// Makes it durable; when this returns it is on disk.
    pub(crate) async fn commit(self, path: &Path) -> Result<()> {
        let Self { transaction, turn } = self;
        let committed = transaction.commit().await.map_err(|source| explain(path, source));
        drop(turn);
        committed
    }
}

async fn begin(path: &Path, pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>> {
    pool.begin_with("BEGIN IMMEDIATE").await.map_err(|source| explain(path, source))
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
