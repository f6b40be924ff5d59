//! Reads of the ledger, and its consistency check.

use creel_model::id::ResourceId;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite, SqliteExecutor};

use crate::{Record, RecordFilter, ResourceState, Result, StoredEvent, Try};

use super::StoreInner;
use super::columns::{Binds, Exact};
use super::rows::Columns;

impl StoreInner {
    pub(super) fn columns<'a>(&'a self, row: &'a SqliteRow) -> Columns<'a> {
        Columns { path: &self.path, row }
    }

    pub(super) async fn record(&self, id: ResourceId) -> Result<Option<Record>> {
        let row = sqlx::query("SELECT * FROM resources WHERE id = ?")
            .column(&id)
            .fetch_optional(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        row.map(|row| self.columns(&row).record()).transpose()
    }

    pub(super) async fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>> {
        self.records_in(&self.pool, filter).await
    }

    /// Reads the matching records, inside a transaction if one is given.
    pub(super) async fn records_in<'c>(
        &self,
        from: impl SqliteExecutor<'c>,
        filter: &RecordFilter,
    ) -> Result<Vec<Record>> {
        let mut query = QueryBuilder::new("SELECT * FROM resources WHERE TRUE");
        if let Some(owner) = &filter.owner {
            query.push(" AND owner = ").column(owner);
        }
        if let Some(run) = filter.run {
            query.push(" AND run = ").column(&run);
        }
        one_of(&mut query, "state", filter.states.iter().map(|state| state.name()));
        query.push(" ORDER BY intended_at_ms, id");
        let rows = query.build().fetch_all(from).await.map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).record()).collect()
    }

    pub(super) async fn history(&self, id: ResourceId) -> Result<Vec<StoredEvent>> {
        let rows = sqlx::query("SELECT * FROM events WHERE resource = ? ORDER BY sequence")
            .column(&id)
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).event()).collect()
    }

    pub(super) async fn tries(&self, resource: Option<ResourceId>, limit: u32) -> Result<Vec<Try>> {
        let rows = sqlx::query(
            "SELECT * FROM tries WHERE (?1 IS NULL OR resource = ?1)
             ORDER BY sequence DESC LIMIT ?2",
        )
        .column(resource.as_ref())
        .column(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).attempt()).collect()
    }

    pub(super) async fn releases_of(&self, object: &str, limit: u32) -> Result<Vec<Try>> {
        let rows = sqlx::query(
            "SELECT * FROM tries
             WHERE operation = 'release'
               AND (object = ?1 OR name = ?1 OR resource = ?1
                    OR (length(?1) >= 12
                        AND substr(replace(object, 'sha256:', ''), 1, length(?1)) = ?1))
             ORDER BY sequence DESC LIMIT ?2",
        )
        .column(Exact(object))
        .column(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).attempt()).collect()
    }

    pub(super) async fn check(&self) -> Result<Vec<String>> {
        let verdicts: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        let mut problems: Vec<String> =
            verdicts.into_iter().filter(|verdict| verdict != "ok").collect();
        for record in self.records(&RecordFilter::default()).await? {
            let events = self.history(record.id).await?;
            if let Some(problem) = replay_problem(&record, &events) {
                problems.push(problem);
            }
        }
        Ok(problems)
    }
}

/// Restricts a column to these names. No names mean no restriction.
pub(super) fn one_of(
    query: &mut QueryBuilder<Sqlite>,
    column: &'static str,
    names: impl Iterator<Item = &'static str>,
) {
    let mut wanted = names.peekable();
    if wanted.peek().is_none() {
        return;
    }
    query.push(" AND ").push(column).push(" IN (");
    let mut list = query.separated(", ");
    for name in wanted {
        list.column(name);
    }
    query.push(")");
}

/// Describes how a record differs from the replay of its events.
fn replay_problem(record: &Record, events: &[StoredEvent]) -> Option<String> {
    let replayed = events.iter().try_fold(None, |state, stored| {
        ResourceState::next(state.as_ref(), &stored.event).map(Some)
    });
    match replayed {
        Err(illegal) => Some(format!("{}: its events do not fit together: {illegal}", record.id)),
        Ok(None) => Some(format!("{} has a record but no event", record.id)),
        Ok(Some(state)) if state != record.state => Some(format!(
            "{} is stored as {} but its events say {}",
            record.id,
            record.state.name(),
            state.name()
        )),
        Ok(Some(_)) => None,
    }
}
