//! A database file of the ledger: opening it, and explaining its errors.
//!
//! The ledger and the event log are two such files. Both are in WAL mode with `synchronous = FULL`:
//! a commit is on disk when it returns. Writers wait in a queue ([`WriteQueue`]); readers never do.
//! SQLite still takes some locks itself: for recovery after a crash, for the last process that
//! closes the file, or for a foreign program. These are waited for as long as they last, so no
//! caller ever sees a locked database.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::Connection;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};

use tokio::sync::OnceCell;
use tracing::{debug, warn};

use crate::Result;
use crate::error::{LedgerError, WhenLocked};

use super::queue::WriteQueue;

/// How long SQLite waits for a lock before the operation is retried.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the write queue of a database. Its file is named after the database.
pub(crate) fn queue_of(path: &Path) -> Result<WriteQueue> {
    let file = path.with_extension("lock");
    WriteQueue::open(&file).map_err(|source| match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            LedgerError::ReadOnly { path: path.to_owned() }
        }
        io::ErrorKind::StorageFull => LedgerError::DiskFull { path: path.to_owned() },
        _ => LedgerError::Home { path: file, source },
    })
}

/// Repeats an operation on a database while another process has it locked.
///
/// The kernel releases the locks of a process that ends, so the wait ends at the latest with the
/// other process.
pub(crate) async fn while_locked<T, E: WhenLocked, F>(
    mut work: impl FnMut() -> F,
) -> std::result::Result<T, E>
where
    F: Future<Output = std::result::Result<T, E>>,
{
    /// SQLite waits by itself; this pause is for locks for which it does not.
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        match work().await {
            Err(error) if error.is_locked() => {
                warn!("another process has the ledger locked; waiting for it");
                tokio::time::sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

/// Opens a database if it is already complete. This needs no lock.
pub(crate) async fn connect_current(
    path: &Path,
    migrations: &[&'static str],
) -> Result<Option<SqlitePool>> {
    if !has_content(path) {
        return Ok(None);
    }
    let pool = connect(path).await?;
    Ok(is_current(&pool, migrations).await.then_some(pool))
}

/// Returns whether the file has content.
///
/// The switch to WAL mode, which needs exclusive access, is the first write. This does not open the
/// file: closing it would release the locks that SQLite holds on it in this process.
fn has_content(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Opens a database, and creates it if it is missing.
pub(crate) async fn connect(path: &Path) -> Result<SqlitePool> {
    while_locked(|| connect_once(path)).await
}

async fn connect_once(path: &Path) -> Result<SqlitePool> {
    if !path.exists() {
        // Created here rather than by SQLite, so that no other user can read it at any moment.
        let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        made.map_err(|source| LedgerError::Home { path: path.to_owned(), source })?;
    }
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true);
    let spare = SpareConnection::new(options.clone());
    SqlitePoolOptions::new()
        .max_connections(2)
        .acquire_timeout(BUSY_TIMEOUT * 3)
        // SQLite ends a transaction by itself when the disk is full, and the driver does not
        // notice. Such a connection rejects every later transaction.
        .after_release(move |connection, _| {
            let spare = spare.clone();
            Box::pin(async move {
                connection.ping().await?;
                let is_usable = !connection.is_in_transaction();
                if !is_usable {
                    spare.open().await;
                }
                Ok(is_usable)
            })
        })
        .connect_with(options)
        .await
        .map_err(|source| explain(path, source))
}

/// A connection outside of the pool, opened before an unusable connection of the pool is closed.
///
/// Without it that could be the last one. SQLite deletes the side files of a database with its
/// last connection, and on a full disk it cannot create them again, not even to read.
#[derive(Debug, Clone)]
struct SpareConnection {
    options: SqliteConnectOptions,
    open: Arc<OnceCell<Mutex<SqliteConnection>>>,
}

impl SpareConnection {
    fn new(options: SqliteConnectOptions) -> Self {
        Self { options, open: Arc::default() }
    }

    async fn open(&self) {
        let open = || async {
            let mut connection = SqliteConnection::connect_with(&self.options).await?;
            // Only a read maps the shared memory.
            sqlx::query("SELECT 1 FROM sqlite_schema LIMIT 1").execute(&mut connection).await?;
            Ok::<_, sqlx::Error>(Mutex::new(connection))
        };
        if let Err(error) = self.open.get_or_try_init(open).await {
            debug!(%error, "the side files of a database may be lost");
        }
    }
}

/// Opens a database read-only, as it is in its file.
///
/// It does not use the side files, for which there is no space. The newest writes may be missing,
/// and no caller may write to it.
pub(crate) async fn connect_unwritable(path: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).immutable(true);
    let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await;
    pool.map_err(|source| explain(path, source))
}

/// Returns whether the schema is exactly the newest supported one. Each migration is atomic.
async fn is_current(pool: &SqlitePool, migrations: &[&'static str]) -> bool {
    // Read the table itself, not its index, so that damage to it shows up here.
    let newest =
        sqlx::query_scalar::<_, i64>("SELECT max(version) FROM _sqlx_migrations NOT INDEXED");
    newest.fetch_one(pool).await.is_ok_and(|found| found == newest_of(migrations))
}

/// Returns the number of the newest supported schema.
fn newest_of(migrations: &[&'static str]) -> i64 {
    i64::try_from(migrations.len()).unwrap_or(i64::MAX)
}

/// Creates the schema, or migrates an older one.
pub(crate) async fn migrate(
    path: &Path,
    pool: &SqlitePool,
    migrations: &[&'static str],
) -> Result<()> {
    let numbered = (1..).zip(migrations.iter().copied());
    let known = newest_of(migrations);
    let steps = numbered.map(|(number, sql)| {
        let sql = sqlx::SqlSafeStr::into_sql_str(sql);
        Migration::new(number, "ledger".into(), MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(steps.collect()).run(pool).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => {
            LedgerError::NewerSchema { path: path.to_owned(), found, known }
        }
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
            explain(path, source)
        }
        other => LedgerError::Corrupt { path: path.to_owned(), detail: other.to_string() },
    })
}

/// Translates SQLite's error into an error for users.
pub(crate) fn explain(path: &Path, source: sqlx::Error) -> LedgerError {
    /// SQLite's primary result codes.
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const READ_ONLY: i32 = 8;
    const IO_ERROR: i32 = 10;
    const CORRUPT: i32 = 11;
    const FULL: i32 = 13;
    const CANNOT_OPEN: i32 = 14;
    const NOT_A_DATABASE: i32 = 26;

    let path = path.to_owned();
    let code = source
        .as_database_error()
        .and_then(|error| error.code()?.parse::<i32>().ok())
        .map(|extended| extended & 0xff);
    match code {
        Some(BUSY | LOCKED) => LedgerError::Locked { path },
        Some(READ_ONLY) => LedgerError::ReadOnly { path },
        Some(FULL) => LedgerError::DiskFull { path },
        Some(IO_ERROR) if is_disk_full(&path) => LedgerError::DiskFull { path },
        Some(CANNOT_OPEN) if !is_writable(&path) => LedgerError::ReadOnly { path },
        Some(CORRUPT | NOT_A_DATABASE) => LedgerError::Corrupt { path, detail: source.to_string() },
        _ if matches!(source, sqlx::Error::PoolTimedOut) => LedgerError::Locked { path },
        _ => LedgerError::Database { path, source },
    }
}

/// Returns whether the disk is full. SQLite reports that as an I/O error for its shared memory.
fn is_disk_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|disk| disk.f_bavail == 0)
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        && path
            .parent()
            .is_none_or(|home| rustix::fs::access(home, rustix::fs::Access::WRITE_OK).is_ok())
}
