//! Writes to the ledger: each operation is one transaction.

use std::sync::atomic::Ordering;
use std::time::Duration;

use creel_model::clock::ClockReading;
use creel_model::id::ResourceId;
use creel_model::owner::Owner;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};
use sqlx::{Executor, QueryBuilder};

use crate::event::VERSION;
use crate::{
    Event, Intent, Lease, LedgerError, OnOwnerDeath, OwnerRecord, Record, RecordFilter,
    ResourceState, Result, SearchWindow, Try,
};

use super::StoreInner;
use super::columns::{Binds, Exact, Json};
use super::rows::Columns;
use super::write::Write;

/// Attempts per statement. SQLite allows 32,766 values, and an attempt has twelve.
const ROWS_A_STATEMENT: usize = 256;

/// The number of creates of one process after which the open records are counted again.
const INTENTS_PER_COUNT: u32 = 64;

type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Binds the columns from `owner` to `search_boot`, in table order.
fn owner_and_times<'q>(statement: Statement<'q>, record: &Record) -> Statement<'q> {
    statement
        .column(&record.owner.owner)
        .column(&record.owner.command)
        .column(record.owner.started_at_ms)
        .column(record.on_owner_death.name())
        .column(record.lease.duration_ms)
        .column(record.lease.renewed.wall_ms)
        .column(record.lease.renewed.awake_ms)
        .column(Exact(&record.lease.boot))
        .column(record.search.from.wall_ms)
        .column(record.search.from.awake_ms)
        .column(Exact(&record.search.boot))
}

impl StoreInner {
    pub(super) async fn begin(&self) -> Result<Write> {
        self.writers.begin().await
    }

    pub(super) async fn commit(&self, write: Write) -> Result<()> {
        self.writers.commit(write).await
    }

    pub(super) async fn record_intent(&self, intent: &Intent) -> Result<Record> {
        let now = self.clock.now();
        let event = Event::Intended { owner: intent.owner.clone() };
        let state = ResourceState::next(None, &event)
            .map_err(|source| LedgerError::Illegal { id: intent.id, source })?;
        let record = Record {
            id: intent.id,
            run: intent.run,
            provider: intent.provider,
            kind: intent.kind,
            name: intent.name.clone(),
            labels: intent.labels.clone(),
            state,
            identity: None,
            owner: intent.owner.clone(),
            on_owner_death: intent.on_owner_death,
            lease: Lease::starting(intent.lease, now, self.boot.clone()),
            search: self.search_from(now),
            intended_at_ms: now.wall_ms,
            changed_at_ms: now.wall_ms,
        };
        let mut transaction = self.begin().await?;
        self.insert_record(&mut transaction, &record).await?;
        self.insert_event(&mut transaction, intent.id, &event, now).await?;
        // A create is a sign of life: resources that an owner took together must not expire one by
        // one.
        self.renew(&mut transaction, &intent.owner.owner, now).await?;
        self.reserve_sometimes(&mut transaction).await?;
        self.commit(transaction).await?;
        Ok(record)
    }

    /// Counts the open records and reserves space for their closing rows.
    ///
    /// It does so at the first create of a process and then once per [`INTENTS_PER_COUNT`] creates.
    async fn reserve_sometimes(&self, from: &mut SqliteConnection) -> Result<()> {
        if !self.intents.fetch_add(1, Ordering::Relaxed).is_multiple_of(INTENTS_PER_COUNT) {
            return Ok(());
        }
        // The condition matches the index of open records, so that only those are read.
        let counted: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM resources WHERE state NOT IN ('gone', 'lost')",
        )
        .fetch_one(from)
        .await
        .map_err(|e| self.error(e))?;
        let soon = u64::try_from(counted).unwrap_or(0) + u64::from(INTENTS_PER_COUNT);
        self.writers.reserve_for(soon);
        Ok(())
    }

    async fn insert_record(&self, to: &mut SqliteConnection, record: &Record) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO resources (id, run, provider, kind, name, labels, state, owner,
                 owner_command, owner_started_ms, on_owner_death, lease_ms, renewed_wall_ms,
                 renewed_awake_ms, renewed_boot, search_wall_ms, search_awake_ms, search_boot,
                 intended_at_ms, changed_at_ms)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .column(&record.id)
        .column(record.run.as_ref())
        .column(record.provider.name())
        .column(record.kind.name())
        .column(Exact(&record.name))
        .column(Json(&record.labels))
        .column(record.state.name().name());
        let statement = owner_and_times(statement, record)
            .column(record.intended_at_ms)
            .column(record.changed_at_ms);
        statement.execute(to).await.map_err(|e| self.error(e))?;
        Ok(())
    }

    async fn insert_event(
        &self,
        to: &mut SqliteConnection,
        resource: ResourceId,
        event: &Event,
        now: ClockReading,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO events (resource, at_ms, actor, version, event) VALUES (?, ?, ?, ?, ?)",
        )
        .column(&resource)
        .column(now.wall_ms)
        .column(&self.actor)
        .column(VERSION)
        .column(Json(event))
        .execute(to)
        .await
        .map_err(|e| self.error(e))?;
        Ok(())
    }

    pub(super) async fn append(&self, events: &[(ResourceId, Event)]) -> Result<Vec<Record>> {
        let now = self.clock.now();
        let mut transaction = self.begin().await?;
        let mut records = Vec::with_capacity(events.len());
        for (id, event) in events {
            records.push(self.apply(&mut transaction, *id, event, now).await?);
        }
        self.commit(transaction).await?;
        Ok(records)
    }

    /// Applies one event to one record. An event that changes nothing is not stored again.
    async fn apply(
        &self,
        to: &mut SqliteConnection,
        id: ResourceId,
        event: &Event,
        now: ClockReading,
    ) -> Result<Record> {
        let row = sqlx::query("SELECT * FROM resources WHERE id = ?")
            .column(&id)
            .fetch_optional(&mut *to)
            .await
            .map_err(|e| self.error(e))?
            .ok_or(LedgerError::Unknown { id })?;
        let before = Columns { path: &self.path, row: &row }.record()?;
        let state = ResourceState::next(Some(&before.state), event)
            .map_err(|source| LedgerError::Illegal { id, source })?;
        let mut after = Record { state, ..before.clone() };
        match event {
            Event::Created { identity, .. } | Event::Found { identity, .. } => {
                // The identity of an object that is gone does not apply to the next one.
                let known = before.identity.clone().filter(|_| before.state.name().is_open());
                after.identity = identity.clone().or(known);
            }
            Event::OwnerChanged { owner } => after.owner = owner.clone(),
            Event::LeaseGranted { from } => {
                after.lease.renewed = *from;
                after.lease.boot.clone_from(&self.boot);
            }
            Event::SearchRestarted { from } => after.search = self.search_from(*from),
            Event::Kept { lease_ms } => {
                after.on_owner_death = OnOwnerDeath::Hold;
                after.lease = self.lease_from(now, *lease_ms);
            }
            Event::Reused { lease_ms } => {
                after.on_owner_death = OnOwnerDeath::Release;
                after.lease = self.lease_from(now, *lease_ms);
            }
            _ => {}
        }
        if after == before {
            return Ok(before);
        }
        after.changed_at_ms = now.wall_ms;
        self.update_record(to, &after).await?;
        self.insert_event(to, id, event, now).await?;
        Ok(after)
    }

    fn lease_from(&self, now: ClockReading, lease_ms: i64) -> Lease {
        let lease = Duration::from_millis(u64::try_from(lease_ms).unwrap_or_default());
        Lease::starting(lease, now, self.boot.clone())
    }

    fn search_from(&self, from: ClockReading) -> SearchWindow {
        SearchWindow { from, boot: self.boot.clone() }
    }

    async fn update_record(&self, to: &mut SqliteConnection, record: &Record) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE resources SET state = ?, object = ?, identity = ?, reason = ?, owner = ?,
                 owner_command = ?, owner_started_ms = ?, on_owner_death = ?, lease_ms = ?,
                 renewed_wall_ms = ?, renewed_awake_ms = ?, renewed_boot = ?, search_wall_ms = ?,
                 search_awake_ms = ?, search_boot = ?, changed_at_ms = ?
             WHERE id = ?",
        )
        .column(record.state.name().name())
        .column(record.state.object().map(Exact))
        .column(record.identity.as_ref().map(Json))
        .column(record.state.reason());
        let statement =
            owner_and_times(statement, record).column(record.changed_at_ms).column(&record.id);
        statement.execute(to).await.map_err(|e| self.error(e))?;
        Ok(())
    }

    pub(super) async fn take_over(
        &self,
        resources: &[ResourceId],
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Vec<Record>> {
        let now = self.clock.now();
        let mut transaction = self.begin().await?;
        // Read inside the transaction: of two heirs, the second finds nothing left.
        let filter = RecordFilter::open().of(from);
        let open = self.records_in(&mut *transaction, &filter).await?;
        let mut changed = Vec::with_capacity(open.len());
        for record in open.iter().filter(|record| resources.contains(&record.id)) {
            let event = Event::OwnerChanged { owner: heir.clone() };
            changed.push(self.apply(&mut transaction, record.id, &event, now).await?);
        }
        self.commit(transaction).await?;
        Ok(changed)
    }

    pub(super) async fn renew_leases(&self, owner: &Owner) -> Result<u64> {
        let now = self.clock.now();
        let mut transaction = self.begin().await?;
        let renewed = self.renew(&mut transaction, owner, now).await?;
        self.commit(transaction).await?;
        Ok(renewed)
    }

    async fn renew(
        &self,
        to: &mut SqliteConnection,
        owner: &Owner,
        now: ClockReading,
    ) -> Result<u64> {
        let renewed = sqlx::query(
            "UPDATE resources
             SET renewed_wall_ms = ?, renewed_awake_ms = ?, renewed_boot = ?
             WHERE owner = ? AND state NOT IN ('gone', 'lost')",
        )
        .column(now.wall_ms)
        .column(now.awake_ms)
        .column(Exact(&self.boot))
        .column(owner)
        .execute(to)
        .await
        .map_err(|e| self.error(e))?;
        Ok(renewed.rows_affected())
    }

    pub(super) async fn append_tries(&self, tries: &[Try]) -> Result<()> {
        let mut transaction = self.begin().await?;
        // Many rows per statement: each statement is a round trip to the driver's thread.
        for rows in tries.chunks(ROWS_A_STATEMENT) {
            let mut insert = QueryBuilder::new(
                "INSERT INTO tries (at_ms, actor, resource, provider, kind, object, operation,
                     attempt, outcome, detail, evidence, name) ",
            );
            insert.push_values(rows, |mut row, one| {
                row.column(one.at_ms)
                    .column(&self.actor)
                    .column(one.resource.as_ref())
                    .column(one.provider.name())
                    .column(one.kind.name())
                    .column(Exact(&one.object))
                    .column(&one.operation)
                    .column(one.attempt)
                    .column(&one.outcome)
                    .column(&one.detail)
                    .column(one.evidence.as_ref())
                    .column(one.name.as_ref());
            });
            transaction.execute(insert.build()).await.map_err(|e| self.error(e))?;
        }
        self.commit(transaction).await
    }
}
