//! Opening the ledger.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::sqlite::SqlitePool;
use tracing::debug;

use crate::clock::Clock;
use crate::id::LedgerId;
use crate::os;
use crate::owner::Owner;

use super::super::{Ledger, LedgerError, Result, presence};
use super::Inner;
use super::ballast::Ballast;
use super::columns::Binds;
use super::database::{
    connect, connect_current, connect_unwritable, explain, make_private_directory, migrate,
    queue_of, while_locked,
};
use super::queue::WriteQueue;
use super::write::Writers;

/// The steps from nothing to the newest schema this code knows.
pub(super) const MIGRATIONS: [&str; 5] = [
    include_str!("../migrations/sqlite/0001_ledger.sql"),
    include_str!("../migrations/sqlite/0002_runs.sql"),
    include_str!("../migrations/sqlite/0003_identity.sql"),
    include_str!("../migrations/sqlite/0004_search_window.sql"),
    include_str!("../migrations/sqlite/0005_unfinished_deletes.sql"),
];

/// Opens the ledger of a directory, and begins one where there never was one.
pub(super) async fn open(
    home: &Path,
    clock: Arc<dyn Clock>,
    ballast: Arc<Ballast>,
) -> Result<Inner> {
    presence::require(home)?;
    let inner = open_with_reserve(home, &clock, &ballast).await?;
    presence::require_same(home, inner.id)?;
    if presence::recorded_id(home).is_none()
        && let Err(error) = presence::record_id(home, inner.id)
    {
        // An older creel wrote no such file; the ledger is good without it.
        debug!(%error, "the id of the ledger could not be written to its file");
    }
    Ok(inner)
}

/// Opens the ledger; on a full disk with the space that is kept for that.
async fn open_with_reserve(
    home: &Path,
    clock: &Arc<dyn Clock>,
    ballast: &Arc<Ballast>,
) -> Result<Inner> {
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

/// Opens a ledger on a disk without any room, as it is in its file: what it says is enough to
/// release what is on this machine. Every write of it fails.
async fn open_unwritable(
    home: &Path,
    clock: &Arc<dyn Clock>,
    ballast: &Arc<Ballast>,
) -> Result<Inner> {
    let path = Ledger::path(home);
    let pool = connect_unwritable(&path).await?;
    let full = || LedgerError::DiskFull { path: path.clone() };
    let id = ledger_id(&path, &pool).await?.ok_or_else(full)?;
    let queue = queue_of(&path)?;
    let writers = Writers::new(&path, &pool, queue, Arc::clone(ballast)).without_room();
    opened(home, (path, pool, writers), id, clock)
}

/// Opens a ledger, or begins one with this id.
pub(super) async fn open_as(
    home: &Path,
    clock: &Arc<dyn Clock>,
    wanted: Option<LedgerId>,
    ballast: &Arc<Ballast>,
) -> Result<Inner> {
    let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
    make_private_directory(home).map_err(in_home)?;
    let path = Ledger::path(home);
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
) -> Result<Inner> {
    let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
    let owner = Owner::this_process().map_err(in_home)?;
    Ok(Inner {
        path,
        pool,
        writers,
        id,
        actor: owner,
        boot: os::boot_id().map_err(in_home)?,
        clock: Arc::clone(clock),
    })
}

/// Opens a ledger that is complete; such a one is opened without a turn in the queue.
async fn open_current(path: &Path) -> Result<Option<(SqlitePool, LedgerId)>> {
    let Some(pool) = connect_current(path, &MIGRATIONS).await? else { return Ok(None) };
    let id = while_locked(|| ledger_id(path, &pool)).await?;
    Ok(id.map(|id| (pool, id)))
}

/// Builds a ledger, or brings it up to date: two processes at once must not both do that.
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

/// Returns which ledger it is; nothing where it has not been named yet.
async fn ledger_id(path: &Path, pool: &SqlitePool) -> Result<Option<LedgerId>> {
    let known: Option<String> = sqlx::query_scalar("SELECT id FROM ledger")
        .fetch_optional(pool)
        .await
        .map_err(|source| explain(path, source))?;
    let damaged = |e: crate::id::InvalidId| LedgerError::Corrupt {
        path: path.to_owned(),
        detail: e.to_string(),
    };
    known.map(|text| text.parse().map_err(damaged)).transpose()
}

/// Gives a fresh ledger its id. The file comes first: a ledger is known by it even when it is lost.
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
