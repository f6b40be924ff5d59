//! Runs: their rows, and the user's input for them.

use creel_model::id::RunId;
use creel_model::owner::Owner;
use creel_model::run::RunState;
use sqlx::sqlite::{Sqlite, SqliteConnection};
use sqlx::{QueryBuilder, SqliteExecutor};

use crate::{LedgerError, NewRun, OwnerRecord, Result, RunFilter, RunRecord, WorkflowRecord};

use super::StoreInner;
use super::columns::{Binds, Exact, Json};
use super::reads::one_of;
use super::rows::Columns;

impl StoreInner {
    pub(super) async fn create_run(&self, run: &NewRun) -> Result<RunRecord> {
        let now = self.clock.now().wall_ms;
        let record = RunRecord {
            id: run.id,
            name: run.name.clone(),
            provider: run.provider,
            owner: run.owner.clone(),
            on_owner_death: run.on_owner_death,
            created_at_ms: now,
            changed_at_ms: now,
            state: RunState::new(),
        };
        let mut transaction = self.begin().await?;
        self.insert_run(&mut transaction, &record).await?;
        self.insert_workflow(&mut transaction, run.id, &run.workflow).await?;
        self.commit(transaction).await?;
        Ok(record)
    }

    pub(super) async fn restore_run(&self, run: &RunRecord) -> Result<()> {
        let mut transaction = self.begin().await?;
        let blank = RunRecord { state: RunState::new(), ..run.clone() };
        self.insert_run(&mut transaction, &blank).await?;
        self.update_run(&mut transaction, run.id, &run.owner.owner, &run.state).await?;
        self.commit(transaction).await
    }

    async fn insert_run(&self, to: &mut SqliteConnection, run: &RunRecord) -> Result<()> {
        sqlx::query(
            "INSERT INTO runs (id, name, provider, owner, owner_command, owner_started_ms,
                 on_owner_death, created_at_ms, changed_at_ms, phase, attempt, sequence, state)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .column(&run.id)
        .column(&run.name)
        .column(run.provider.name())
        .column(&run.owner.owner)
        .column(&run.owner.command)
        .column(run.owner.started_at_ms)
        .column(run.on_owner_death.name())
        .column(run.created_at_ms)
        .column(run.changed_at_ms)
        .column(run.state.phase.name())
        .column(run.state.attempt)
        .column(number_of(&run.state))
        .column(Json(&run.state))
        .execute(to)
        .await
        .map_err(|e| self.error(e))?;
        Ok(())
    }

    async fn insert_workflow(
        &self,
        to: &mut SqliteConnection,
        run: RunId,
        workflow: &WorkflowRecord,
    ) -> Result<()> {
        sqlx::query("INSERT INTO workflows (run, source_name, source, inputs) VALUES (?, ?, ?, ?)")
            .column(&run)
            .column(&workflow.source_name)
            .column(Exact(&workflow.source))
            .column(Json(&workflow.inputs))
            .execute(to)
            .await
            .map_err(|e| self.error(e))?;
        Ok(())
    }

    pub(super) async fn run(&self, id: RunId) -> Result<Option<RunRecord>> {
        self.run_in(&self.pool, id).await
    }

    /// Reads one run, inside a transaction if one is given.
    async fn run_in<'c>(
        &self,
        from: impl SqliteExecutor<'c>,
        id: RunId,
    ) -> Result<Option<RunRecord>> {
        let row = sqlx::query("SELECT * FROM runs WHERE id = ?")
            .column(&id)
            .fetch_optional(from)
            .await
            .map_err(|e| self.error(e))?;
        row.map(|row| self.columns(&row).run()).transpose()
    }

    pub(super) async fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRecord>> {
        let mut query = wanted(filter);
        let rows = query.build().fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).run()).collect()
    }

    pub(super) async fn save_run(&self, id: RunId, owner: &Owner, state: &RunState) -> Result<()> {
        let mut transaction = self.begin().await?;
        if self.update_run(&mut transaction, id, owner, state).await? {
            return self.commit(transaction).await;
        }
        // No row matched: another owner has the run, or the saved state is not older.
        let known = self.run_in(&mut *transaction, id).await?;
        let known = known.ok_or(LedgerError::UnknownRun { run: id })?;
        if known.owner.owner != *owner {
            return Err(LedgerError::NotOwner { run: id, owner: known.owner.owner.to_string() });
        }
        Ok(())
    }

    /// Updates the row if it still belongs to this owner and is older. Returns whether it did.
    async fn update_run(
        &self,
        to: &mut SqliteConnection,
        id: RunId,
        owner: &Owner,
        state: &RunState,
    ) -> Result<bool> {
        let changed = sqlx::query(
            "UPDATE runs SET changed_at_ms = ?, phase = ?, class = ?, attempt = ?,
                 kept_until_ms = ?, sequence = ?, state = ?
             WHERE id = ? AND owner = ? AND sequence < ?",
        )
        .column(self.clock.now().wall_ms)
        .column(state.phase.name())
        .column(state.cause().map(|cause| cause.class.name()))
        .column(state.attempt)
        .column(state.kept_until_ms)
        .column(number_of(state))
        .column(Json(state))
        .column(&id)
        .column(owner)
        .column(number_of(state))
        .execute(to)
        .await
        .map_err(|e| self.error(e))?;
        Ok(changed.rows_affected() > 0)
    }

    pub(super) async fn claim_run(
        &self,
        id: RunId,
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Option<RunRecord>> {
        let mut transaction = self.begin().await?;
        let changed = sqlx::query(
            "UPDATE runs SET owner = ?, owner_command = ?, owner_started_ms = ?
             WHERE id = ? AND owner = ?",
        )
        .column(&heir.owner)
        .column(&heir.command)
        .column(heir.started_at_ms)
        .column(&id)
        .column(from)
        .execute(&mut *transaction)
        .await
        .map_err(|e| self.error(e))?;
        if changed.rows_affected() == 0 {
            return Ok(None);
        }
        let claimed = self.run_in(&mut *transaction, id).await?;
        self.commit(transaction).await?;
        Ok(claimed)
    }

    pub(super) async fn workflow_of(&self, run: RunId) -> Result<Option<WorkflowRecord>> {
        let row = sqlx::query("SELECT * FROM workflows WHERE run = ?")
            .column(&run)
            .fetch_optional(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        row.map(|row| self.columns(&row).workflow()).transpose()
    }
}

/// Converts a filter to a query.
fn wanted(filter: &RunFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT * FROM runs WHERE TRUE");
    if filter.unfinished {
        // Must match the condition of the index.
        query.push(
            " AND (phase NOT IN ('succeeded', 'failed', 'cancelled') OR kept_until_ms IS NOT NULL)",
        );
    }
    if let Some(owner) = &filter.owner {
        query.push(" AND owner = ").column(owner);
    }
    if let Some(at_ms) = filter.newer_than_ms {
        query.push(" AND created_at_ms >= ").column(at_ms);
    }
    if let Some(at_ms) = filter.older_than_ms {
        query.push(" AND created_at_ms <= ").column(at_ms);
    }
    if let Some(prefix) = &filter.id_prefix {
        query.push(" AND substr(id, 1, ").column(characters_of(prefix));
        query.push(") = ").column(Exact(prefix));
    }
    one_of(&mut query, "phase", filter.phases.iter().map(|phase| phase.name()));
    one_of(&mut query, "class", filter.classes.iter().map(|class| class.name()));
    query.push(" ORDER BY created_at_ms, id");
    query
}

fn characters_of(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

/// Converts to a signed number, as SQLite requires. No run has enough events to overflow.
fn number_of(state: &RunState) -> i64 {
    i64::try_from(state.sequence).unwrap_or(i64::MAX)
}

impl Columns<'_> {
    fn run(&self) -> Result<RunRecord> {
        Ok(RunRecord {
            id: self.parsed("id")?,
            name: self.masked("name")?,
            provider: self.parsed("provider")?,
            owner: OwnerRecord {
                owner: self.parsed("owner")?,
                command: self.masked("owner_command")?,
                started_at_ms: self.number("owner_started_ms")?,
            },
            on_owner_death: self.parsed("on_owner_death")?,
            created_at_ms: self.number("created_at_ms")?,
            changed_at_ms: self.number("changed_at_ms")?,
            state: self.json("state")?,
        })
    }

    fn workflow(&self) -> Result<WorkflowRecord> {
        Ok(WorkflowRecord {
            source_name: self.masked("source_name")?,
            source: self.text("source")?,
            inputs: self.json("inputs")?,
        })
    }
}
