//! The event log: `events.db` beside the ledger, append-only.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{Executor, QueryBuilder, Row};

use crate::id::RunId;
use crate::ledger::LedgerError;
use crate::ledger::ballast::Ballast;
use crate::ledger::columns::{Binds, Exact, Packed};
use crate::ledger::database::{self, while_locked};
use crate::ledger::queue::WriteQueue;
use crate::ledger::write::Writers;
use crate::run::{Logged, RunEvent};
use crate::task;

use super::stored::StoredForm;
use super::{RecordsError, Result};

/// The version of the stored form; a new one comes with a test that reads the old one.
const VERSION: i64 = 2;

/// The steps from nothing to the newest schema this code knows.
const MIGRATIONS: [&str; 2] =
    [include_str!("migrations/0001_events.sql"), include_str!("migrations/0002_packed.sql")];

/// How many events one statement takes; SQLite allows 32,766 values, an event has seven.
const ROWS_A_STATEMENT: usize = 256;

/// The events of all runs of one ledger; cheap to clone.
#[derive(Debug, Clone)]
pub struct EventLog {
    /// Shared with the tasks that run the writes.
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where the file is, for messages.
    path: PathBuf,
    /// Connections to it.
    pool: SqlitePool,
    /// Those who write it.
    writers: Writers,
}

impl EventLog {
    /// Opens the log in a directory, making it where it is missing.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason: locked, read-only, full, damaged, too new.
    pub async fn open(home: &Path) -> std::result::Result<Self, LedgerError> {
        Self::open_with(home, Arc::new(Ballast::beside(home))).await
    }

    /// Opens the log with space for a full disk that others use too.
    pub(crate) async fn open_with(
        home: &Path,
        ballast: Arc<Ballast>,
    ) -> std::result::Result<Self, LedgerError> {
        match Self::open_once(home, &ballast).await {
            Err(LedgerError::DiskFull { .. }) if ballast.release() => {
                Self::open_once(home, &ballast).await
            }
            other => other,
        }
    }

    async fn open_once(
        home: &Path,
        ballast: &Arc<Ballast>,
    ) -> std::result::Result<Self, LedgerError> {
        let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
        database::make_private_directory(home).map_err(in_home)?;
        let path = Self::path(home);
        let queue = database::queue_of(&path)?;
        let pool = match database::connect_current(&path, &MIGRATIONS).await? {
            Some(pool) => pool,
            None => build(&path, &queue).await?,
        };
        let writers = Writers::new(&path, &pool, queue, Arc::clone(ballast));
        Ok(Self { inner: Arc::new(Inner { path, pool, writers }) })
    }

    /// Returns the path of the log in a directory.
    pub fn path(home: &Path) -> PathBuf {
        home.join("events.db")
    }

    /// Appends events of a run, all or none; they are on disk when this returns.
    ///
    /// # Errors
    ///
    /// Fails when they do not follow directly on what is there, or could not be made durable.
    pub async fn append(&self, run: RunId, events: &[Logged]) -> Result<()> {
        let (inner, events) = (Arc::clone(&self.inner), events.to_vec());
        task::finish(async move { inner.append_as_it_must(run, &events).await }).await
    }

    /// Returns events of a run from a number on, oldest first, at most so many.
    ///
    /// # Errors
    ///
    /// Fails when the log cannot be read.
    pub async fn read(&self, run: RunId, from: u64, limit: u32) -> Result<Vec<Logged>> {
        while_locked(|| self.inner.read(run, from, limit)).await
    }

    /// Returns the runs of which there are events, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the log cannot be read.
    pub async fn runs(&self) -> Result<Vec<RunId>> {
        self.inner.runs().await
    }

    /// Returns the number of the newest event of a run; 0 where there is none.
    ///
    /// # Errors
    ///
    /// Fails when the log cannot be read.
    pub async fn newest(&self, run: RunId) -> Result<u64> {
        while_locked(|| self.inner.newest_in(&self.inner.pool, run)).await
    }
}

impl Inner {
    fn error(&self, source: sqlx::Error) -> RecordsError {
        database::explain(&self.path, source).into()
    }

    fn damaged(&self, detail: impl std::fmt::Display) -> RecordsError {
        LedgerError::Corrupt { path: self.path.clone(), detail: detail.to_string() }.into()
    }

    /// Appends events. Space that is kept for a full disk is for what happened, not for what
    /// the agent wrote.
    async fn append_as_it_must(&self, run: RunId, events: &[Logged]) -> Result<()> {
        let is_output = |logged: &Logged| matches!(logged.event, RunEvent::Text { .. });
        // Packed before the turn begins: others wait for its end.
        let rows: Vec<StoredForm> = events.iter().map(|one| StoredForm::of(&one.event)).collect();
        match events.iter().all(is_output) {
            true => self.writers.optional(|| self.append(run, events, &rows)).await,
            false => self.writers.ending(|| self.append(run, events, &rows)).await,
        }
    }

    async fn append(&self, run: RunId, events: &[Logged], forms: &[StoredForm]) -> Result<()> {
        let mut transaction = self.writers.begin().await?;
        // Read inside the transaction: of two writers, the second finds its number taken.
        let newest = self.newest_in(&mut *transaction, run).await?;
        check_numbers(run, newest, events)?;
        let rows: Vec<_> = events.iter().zip(forms).collect();
        self.insert(&mut transaction, run, &rows).await?;
        Ok(self.writers.commit(transaction).await?)
    }

    async fn insert(
        &self,
        to: &mut SqliteConnection,
        run: RunId,
        events: &[(&Logged, &StoredForm)],
    ) -> Result<()> {
        for rows in events.chunks(ROWS_A_STATEMENT) {
            let mut insert = QueryBuilder::new(
                "INSERT INTO events (run, sequence, at_ms, spooled, version, event, packed) ",
            );
            insert.push_values(rows, |mut row, (logged, form)| {
                row.column(&run)
                    .column(stored(logged.sequence))
                    .column(logged.at_ms)
                    .column(logged.spooled.map(stored))
                    .column(VERSION)
                    .column(Exact(&form.plain))
                    .column(form.packed.as_deref().map(Packed));
            });
            to.execute(insert.build()).await.map_err(|e| self.error(e))?;
        }
        Ok(())
    }

    async fn newest_in<'c>(&self, from: impl sqlx::SqliteExecutor<'c>, run: RunId) -> Result<u64> {
        let newest: Option<i64> =
            sqlx::query_scalar("SELECT max(sequence) FROM events WHERE run = ?")
                .column(&run)
                .fetch_one(from)
                .await
                .map_err(|e| self.error(e))?;
        u64::try_from(newest.unwrap_or(0)).map_err(|e| self.damaged(e))
    }

    async fn runs(&self) -> Result<Vec<RunId>> {
        let runs: Vec<String> = sqlx::query_scalar("SELECT DISTINCT run FROM events ORDER BY run")
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        runs.iter().map(|run| run.parse().map_err(|e| self.damaged(e))).collect()
    }

    async fn read(&self, run: RunId, from: u64, limit: u32) -> Result<Vec<Logged>> {
        let rows = sqlx::query(
            "SELECT * FROM events WHERE run = ? AND sequence >= ? ORDER BY sequence LIMIT ?",
        )
        .column(&run)
        .column(stored(from))
        .column(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.logged(row)).collect()
    }

    fn logged(&self, row: &SqliteRow) -> Result<Logged> {
        let number = |value: i64| u64::try_from(value).map_err(|e| self.damaged(e));
        let spooled: Option<i64> = row.try_get("spooled").map_err(|e| self.damaged(e))?;
        let form = StoredForm {
            plain: row.try_get("event").map_err(|e| self.damaged(e))?,
            packed: row.try_get("packed").map_err(|e| self.damaged(e))?,
        };
        Ok(Logged {
            sequence: number(row.try_get("sequence").map_err(|e| self.damaged(e))?)?,
            at_ms: row.try_get("at_ms").map_err(|e| self.damaged(e))?,
            spooled: spooled.map(number).transpose()?,
            event: form.event().map_err(|detail| self.damaged(detail))?,
        })
    }
}

/// Builds the log, or brings it up to date: two processes at once must not both do that.
async fn build(path: &Path, queue: &WriteQueue) -> std::result::Result<SqlitePool, LedgerError> {
    let in_queue = |source| LedgerError::Home { path: path.to_owned(), source };
    let _turn = queue.turn().await.map_err(in_queue)?;
    let pool = database::connect(path).await?;
    while_locked(|| database::migrate(path, &pool, &MIGRATIONS)).await?;
    Ok(pool)
}

/// Checks that events follow directly on the newest that is there.
fn check_numbers(run: RunId, newest: u64, events: &[Logged]) -> Result<()> {
    for (expected, logged) in (newest + 1..).zip(events) {
        let sequence = logged.sequence;
        if let RunEvent::EventsLost { first, last, .. } = logged.event
            && events.len() == 1
            && (first, last + 1) == (expected, sequence)
        {
            return Ok(());
        }
        if sequence < expected {
            return Err(RecordsError::Overtaken { run, sequence });
        }
        if sequence > expected {
            return Err(RecordsError::Incomplete { run, logged: expected - 1, held: sequence - 1 });
        }
    }
    Ok(())
}

/// SQLite has no unsigned numbers; no run has that many events.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What only tests do to a log.
#[cfg(test)]
impl EventLog {
    pub(super) async fn execute(&self, statement: &'static str) -> sqlx::Result<()> {
        sqlx::query(statement).execute(&self.inner.pool).await.map(drop)
    }

    /// Sets something that is each connection's own.
    pub(super) async fn set(&self, pragma: &'static str) {
        let mut all = Vec::new();
        for _ in 0..self.inner.pool.options().get_max_connections() {
            all.push(self.inner.pool.acquire().await.unwrap());
        }
        for connection in &mut all {
            sqlx::query(pragma).execute(&mut **connection).await.unwrap();
        }
    }

    /// Keeps everybody else from writing, until the answer is dropped.
    pub(super) async fn lock(&self) -> crate::ledger::write::Write {
        self.inner.writers.begin().await.unwrap()
    }
}
