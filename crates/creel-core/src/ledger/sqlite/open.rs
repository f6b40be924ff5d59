//! Opening the ledger.

use std::path::Path;
use std::sync::Arc;

use sqlx::sqlite::SqlitePool;

use crate::clock::Clock;
use crate::id::LedgerId;
use crate::os;
use crate::owner::Owner;

use super::super::{Ledger, LedgerError, Result};
use super::Inner;
use super::database::{connect, explain, lock_exclusively, make_private_directory, migrate};

/// The steps from nothing to the newest schema this code knows.
pub(super) const MIGRATIONS: [&str; 2] = [
    include_str!("../migrations/sqlite/0001_ledger.sql"),
    include_str!("../migrations/sqlite/0002_runs.sql"),
];

pub(super) async fn open(home: &Path, clock: Arc<dyn Clock>) -> Result<Inner> {
    let in_home = |source| LedgerError::Home { path: home.to_owned(), source };
    make_private_directory(home).map_err(in_home)?;
    let path = Ledger::path(home);
    let _lock = lock_exclusively(home).await?;
    let pool = connect(&path).await?;
    migrate(&path, &pool, &MIGRATIONS).await?;
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
