//! Opening the file, and naming what is wrong with it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sqlx::Connection;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::clock::Clock;
use crate::id::LedgerId;
use crate::os;
use crate::owner::Owner;

use super::super::{Ledger, LedgerError, Result};
use super::Inner;

/// How long a write waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The newest schema this code knows.
const NEWEST_SCHEMA: i64 = 1;

fn migrator() -> Migrator {
    Migrator::with_migrations(vec![Migration::new(
        1,
        "ledger".into(),
        MigrationType::Simple,
        sqlx::SqlSafeStr::into_sql_str(include_str!("../migrations/sqlite/0001_ledger.sql")),
        false,
    )])
}

pub(super) async fn open(home: &Path, clock: Arc<dyn Clock>) -> Result<Inner> {
    let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
    make_private_directory(home).map_err(in_home)?;
    let path = Ledger::path(home);
    // Two processes that open a fresh ledger at once must not both build the schema.
    let _lock = lock_exclusively(home).await?;
    let pool = connect(&path).await?;
    migrate(&path, &pool).await?;
    let owner = Owner::this_process().map_err(in_home)?;
    let id = ledger_id(&path, &pool, clock.now().wall_ms).await?;
    Ok(Inner {
        path,
        pool,
        id,
        actor: owner.to_string(),
        boot: os::boot_id().map_err(in_home)?,
        clock,
    })
}

fn make_private_directory(home: &Path) -> io::Result<()> {
    if home.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home)
}

/// Takes the lock beside the ledger, waiting for whoever holds it.
async fn lock_exclusively(home: &Path) -> Result<fs::File> {
    let path = home.join("ledger.lock");
    let in_file = |source: io::Error| match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            LedgerError::ReadOnly { path: Ledger::path(home) }
        }
        io::ErrorKind::StorageFull => LedgerError::DiskFull { path: Ledger::path(home) },
        _ => LedgerError::Home { path: path.clone(), source },
    };
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(in_file)?;
    let deadline = tokio::time::Instant::now() + BUSY_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LedgerError::Locked { path: Ledger::path(home) });
            }
            Err(error) => return Err(in_file(error.into())),
        }
    }
}

async fn connect(path: &Path) -> Result<SqlitePool> {
    if !path.exists() {
        // Made here rather than by SQLite, so that nobody else may read it at any instant.
        let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        made.map_err(|source| LedgerError::Home { path: path.to_owned(), source })?;
    }
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true);
    SqlitePoolOptions::new()
        .max_connections(2)
        .acquire_timeout(BUSY_TIMEOUT * 3)
        // SQLite ends a transaction by itself when the disk is full, which the driver does not
        // notice: such a connection refuses every later one.
        .after_release(|connection, _| {
            Box::pin(async move {
                connection.ping().await?;
                Ok(!connection.is_in_transaction())
            })
        })
        .connect_with(options)
        .await
        .map_err(|source| explain(path, source))
}

async fn migrate(path: &Path, pool: &SqlitePool) -> Result<()> {
    migrator().run(pool).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => {
            LedgerError::NewerSchema { path: path.to_owned(), found, known: NEWEST_SCHEMA }
        }
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
            explain(path, source)
        }
        other => LedgerError::Corrupt { path: path.to_owned(), detail: other.to_string() },
    })
}

async fn ledger_id(path: &Path, pool: &SqlitePool, now_ms: i64) -> Result<LedgerId> {
    let known: Option<String> = sqlx::query_scalar("SELECT id FROM ledger")
        .fetch_optional(pool)
        .await
        .map_err(|source| explain(path, source))?;
    if let Some(text) = known {
        let damaged = |e: crate::id::InvalidId| LedgerError::Corrupt {
            path: path.to_owned(),
            detail: e.to_string(),
        };
        return text.parse().map_err(damaged);
    }
    let id = LedgerId::new();
    sqlx::query("INSERT INTO ledger (id, created_at_ms) VALUES (?, ?)")
        .bind(id.to_string())
        .bind(now_ms)
        .execute(pool)
        .await
        .map_err(|source| explain(path, source))?;
    Ok(id)
}

/// Names what SQLite's error means for a user.
pub(super) fn explain(path: &Path, source: sqlx::Error) -> LedgerError {
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

/// SQLite reports a full disk as an I/O error when it grows its shared memory.
fn is_disk_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|disk| disk.f_bavail == 0)
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        && path
            .parent()
            .is_none_or(|home| rustix::fs::access(home, rustix::fs::Access::WRITE_OK).is_ok())
}
