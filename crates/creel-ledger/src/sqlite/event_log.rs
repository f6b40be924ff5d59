//! The event log: `events.db` next to the ledger, append-only.

mod stored;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use creel_model::id::RunId;
use creel_model::run::{Logged, RunEvent};
use creel_model::task;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{Executor, QueryBuilder, Row};

use crate::error::{LedgerError, RecordsError};
use crate::files;

use super::ballast::Ballast;
use super::columns::{Binds, Exact, Packed};
use super::database;
use super::database::while_locked;
use super::queue::WriteQueue;
use super::write::Writers;

use stored::StoredForm;

type Result<T> = std::result::Result<T, RecordsError>;

/// The version of the stored form. A new version needs a test that reads the old one.
const VERSION: i64 = 2;

/// The migrations from an empty file to the newest schema.
const MIGRATIONS: [&str; 2] = [
    include_str!("migrations/events/0001_events.sql"),
    include_str!("migrations/events/0002_packed.sql"),
];

/// The number of events per statement. SQLite allows 32,766 values, and an event has seven.
const ROWS_A_STATEMENT: usize = 256;

/// The events of all runs of one ledger. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventLog {
    /// Shared with the tasks that run the writes.
    inner: Arc<LogInner>,
}

#[derive(Debug)]
struct LogInner {
    /// The path of the file, for messages.
    path: PathBuf,
    /// The connections to the file.
    pool: SqlitePool,
    /// The queue of writers.
    writers: Writers,
}

impl EventLog {
    /// Opens the log in a directory, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason: locked, read-only, full, damaged, too new.
    pub async fn open(home: &Path) -> crate::Result<Self> {
        Self::open_with(home, Arc::new(Ballast::beside(home))).await
    }

    /// Opens the log with a disk space reserve that it shares with others.
    pub(crate) async fn open_with(home: &Path, ballast: Arc<Ballast>) -> crate::Result<Self> {
        match Self::open_once(home, &ballast).await {
            Err(LedgerError::DiskFull { .. }) if ballast.release() => {
                Self::open_once(home, &ballast).await
            }
            other => other,
        }
    }

    async fn open_once(home: &Path, ballast: &Arc<Ballast>) -> crate::Result<Self> {
        let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
        files::make_private_directory(home).map_err(in_home)?;
        let path = Self::path(home);
        let queue = database::queue_of(&path)?;
        let pool = match database::connect_current(&path, &MIGRATIONS).await? {
            Some(pool) => pool,
            None => build(&path, &queue).await?,
        };
        let writers = Writers::new(&path, &pool, queue, Arc::clone(ballast));
        Ok(Self { inner: Arc::new(LogInner { path, pool, writers }) })
    }

    /// Returns the path of the log in a directory.
    pub fn path(home: &Path) -> PathBuf {
        files::event_log(home)
    }

    /// Appends events of a run, all or none. They are on disk when this returns.
    ///
    /// # Errors
    ///
    /// Fails when they do not directly follow the newest event, or could not be made durable.
    pub async fn append(&self, run: RunId, events: &[Logged]) -> Result<()> {
        let (inner, events) = (Arc::clone(&self.inner), events.to_vec());
        task::finish(async move { inner.append_with_reserve(run, &events).await }).await
    }

    /// Returns at most `limit` events of a run, starting at a number, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the log cannot be read.
    pub async fn read(&self, run: RunId, from: u64, limit: u32) -> Result<Vec<Logged>> {
        while_locked(|| self.inner.read(run, from, limit)).await
    }

    /// Returns the runs that have events, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the log cannot be read.
    pub async fn runs(&self) -> Result<Vec<RunId>> {
        self.inner.runs().await
    }

    /// Returns the number of the newest event of a run, or 0 if there is none.
    ///
    /// # Errors
    ///
    /// Fails when the log cannot be read.
    pub async fn newest(&self, run: RunId) -> Result<u64> {
        while_locked(|| self.inner.newest_in(&self.inner.pool, run)).await
    }
}

impl LogInner {
    fn error(&self, source: sqlx::Error) -> RecordsError {
        database::explain(&self.path, source).into()
    }

    fn damaged(&self, detail: impl std::fmt::Display) -> RecordsError {
        LedgerError::Corrupt { path: self.path.clone(), detail: detail.to_string() }.into()
    }

    /// Appends events.
    ///
    /// The disk space reserve is not used for agent output alone.
    async fn append_with_reserve(&self, run: RunId, events: &[Logged]) -> Result<()> {
        let is_output = |logged: &Logged| matches!(logged.event, RunEvent::Text { .. });
        // Packed before the write turn begins, because other writers wait for its end.
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

/// Creates or migrates the log. Holds the write turn, so that only one process does this at a time.
async fn build(path: &Path, queue: &WriteQueue) -> crate::Result<SqlitePool> {
    let in_queue = |source| LedgerError::Home { path: path.to_owned(), source };
    let _turn = queue.turn().await.map_err(in_queue)?;
    let pool = database::connect(path).await?;
    while_locked(|| database::migrate(path, &pool, &MIGRATIONS)).await?;
    Ok(pool)
}

/// Checks that events directly follow the newest stored one.
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

/// Converts a number for SQLite, which has no unsigned integers. No run has that many events.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Operations for tests only.
#[cfg(test)]
impl EventLog {
    pub(crate) async fn execute(&self, statement: &'static str) -> sqlx::Result<()> {
        sqlx::query(statement).execute(&self.inner.pool).await.map(drop)
    }

    /// Sets a pragma on every connection.
    pub(crate) async fn set(&self, pragma: &'static str) {
        let mut all = Vec::new();
        for _ in 0..self.inner.pool.options().get_max_connections() {
            all.push(self.inner.pool.acquire().await.unwrap());
        }
        for connection in &mut all {
            sqlx::query(pragma).execute(&mut **connection).await.unwrap();
        }
    }

    /// Blocks all other writers until the returned value is dropped.
    pub(crate) async fn lock(&self) -> super::write::Write {
        self.inner.writers.begin().await.unwrap()
    }
}
