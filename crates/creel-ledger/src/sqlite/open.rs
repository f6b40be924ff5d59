//! Opening the ledger.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use creel_model::clock::Clock;
use creel_model::id::LedgerId;
use creel_model::os;
use creel_model::owner::Owner;
use sqlx::sqlite::SqlitePool;
use tracing::debug;

use crate::error::LedgerError;
use crate::files::make_private_directory;
use crate::{Result, files, presence};

use super::StoreInner;
use super::ballast::Ballast;
use super::columns::Binds;
use super::database::{
    connect, connect_current, connect_unwritable, explain, migrate, queue_of, while_locked,
};
use super::queue::WriteQueue;
use super::write::Writers;

/// The migrations from an empty file to the newest schema that this code supports.
pub(super) const MIGRATIONS: [&str; 5] = [
    include_str!("migrations/ledger/0001_ledger.sql"),
    include_str!("migrations/ledger/0002_runs.sql"),
    include_str!("migrations/ledger/0003_identity.sql"),
    include_str!("migrations/ledger/0004_search_window.sql"),
    include_str!("migrations/ledger/0005_unfinished_deletes.sql"),
];

/// Opens the ledger of a directory, or creates one where none ever existed.
pub(super) async fn open(
    home: &Path,
    clock: Arc<dyn Clock>,
    ballast: Arc<Ballast>,
) -> Result<StoreInner> {
    presence::require(home)?;
    let inner = open_with_reserve(home, &clock, &ballast).await?;
    presence::require_same(home, inner.id)?;
    if presence::recorded_id(home).is_none()
        && let Err(error) = presence::record_id(home, inner.id)
    {
        // An older creel wrote no such file, and the ledger is valid without it.
        debug!(%error, "the id of the ledger could not be written to its file");
    }
    Ok(inner)
}

/// Opens the ledger, using the reserved space if the disk is full.
async fn open_with_reserve(
    home: &Path,
    clock: &Arc<dyn Clock>,
    ballast: &Arc<Ballast>,
) -> Result<StoreInner> {
    match open_as(home, clock, None, ballast).await {
        Err(LedgerError::DiskFull { .. }) => {}
        other => return other,
    }
    if ballast.release() {
        match open_as(home, clock, None, ballast).await {
            Err(LedgerError::DiskFull { .. }) => {}
            other => return other,
        }
    }
    open_unwritable(home, clock, ballast).await
}

/// Opens a ledger read-only, as it is in its file, on a disk without any free space.
///
/// Its records are enough to release what is on this machine. Every write fails.
async fn open_unwritable(
    home: &Path,
    clock: &Arc<dyn Clock>,
    ballast: &Arc<Ballast>,
) -> Result<StoreInner> {
    let path = files::ledger(home);
    let pool = connect_unwritable(&path).await?;
    let full = || LedgerError::DiskFull { path: path.clone() };
    let id = ledger_id(&path, &pool).await?.ok_or_else(full)?;
    let queue = queue_of(&path)?;
    let writers = Writers::new(&path, &pool, queue, Arc::clone(ballast)).without_space();
    opened(home, (path, pool, writers), id, clock)
}

/// Opens a ledger, or creates one with this id.
pub(super) async fn open_as(
    home: &Path,
    clock: &Arc<dyn Clock>,
    wanted: Option<LedgerId>,
    ballast: &Arc<Ballast>,
) -> Result<StoreInner> {
    let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
    make_private_directory(home).map_err(in_home)?;
    let path = files::ledger(home);
    let queue = queue_of(&path)?;
    let (pool, id) = match open_current(&path).await? {
        Some(opened) => opened,
        None => {
            let id = wanted.or_else(|| presence::recorded_id(home)).unwrap_or_else(LedgerId::new);
            build(&path, &queue, id, clock.now().wall_ms).await?
        }
    };
    let writers = Writers::new(&path, &pool, queue, Arc::clone(ballast));
    opened(home, (path, pool, writers), id, clock)
}

fn opened(
    home: &Path,
    (path, pool, writers): (PathBuf, SqlitePool, Writers),
    id: LedgerId,
    clock: &Arc<dyn Clock>,
) -> Result<StoreInner> {
    let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
    let owner = Owner::this_process().map_err(in_home)?;
    Ok(StoreInner {
        path,
        pool,
        writers,
        id,
        actor: owner,
        boot: os::boot_id().map_err(in_home)?,
        clock: Arc::clone(clock),
        intents: AtomicU32::new(0),
    })
}

/// Opens a ledger that is already complete, without a turn in the queue.
async fn open_current(path: &Path) -> Result<Option<(SqlitePool, LedgerId)>> {
    let Some(pool) = connect_current(path, &MIGRATIONS).await? else { return Ok(None) };
    let id = while_locked(|| ledger_id(path, &pool)).await?;
    Ok(id.map(|id| (pool, id)))
}

/// Creates a ledger or migrates it. The queue prevents two processes from doing so at once.
async fn build(
    path: &Path,
    queue: &WriteQueue,
    id: LedgerId,
    now_ms: i64,
) -> Result<(SqlitePool, LedgerId)> {
    let in_queue = |source| LedgerError::Home { path: path.to_owned(), source };
    let _turn = queue.turn().await.map_err(in_queue)?;
    let pool = connect(path).await?;
    while_locked(|| migrate(path, &pool, &MIGRATIONS)).await?;
    let known = while_locked(|| ledger_id(path, &pool)).await?;
    let id = match known {
        Some(known) => known,
        None => while_locked(|| name_ledger(path, &pool, id, now_ms)).await?,
    };
    Ok((pool, id))
}

/// Returns the id of the ledger, or `None` if it has no id yet.
async fn ledger_id(path: &Path, pool: &SqlitePool) -> Result<Option<LedgerId>> {
    let known: Option<String> = sqlx::query_scalar("SELECT id FROM ledger")
        .fetch_optional(pool)
        .await
        .map_err(|source| explain(path, source))?;
    let damaged = |e: creel_model::id::InvalidId| LedgerError::Corrupt {
        path: path.to_owned(),
        detail: e.to_string(),
    };
    known.map(|text| text.parse().map_err(damaged)).transpose()
}

/// Assigns an id to a new ledger.
///
/// The id file is written first, so that the ledger is identified even if its database is lost.
async fn name_ledger(
    path: &Path,
    pool: &SqlitePool,
    id: LedgerId,
    now_ms: i64,
) -> Result<LedgerId> {
    presence::record_id(path.parent().unwrap_or(path), id)?;
    sqlx::query("INSERT INTO ledger (id, created_at_ms) VALUES (?, ?)")
        .column(&id)
        .column(now_ms)
        .execute(pool)
        .await
        .map_err(|source| explain(path, source))?;
    Ok(id)
}
