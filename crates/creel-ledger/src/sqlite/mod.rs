//! The store on SQLite: one file, safe for several processes at once.
//!
//! It uses WAL with `synchronous = FULL`: a commit is on disk when it returns. Writes wait in a
//! fair queue across all processes ([`queue`]) and run in their own task, so a cancelled caller
//! cannot cut one in half. Reads never wait in the queue.
//!
//! The event log ([`EventLog`]) is a second file of the same kind beside it.

pub(crate) mod ballast;
pub(crate) mod columns;
mod commands;
pub(crate) mod database;
mod event_log;
mod open;
mod queue;
mod reads;
mod rows;
mod runs;
mod unfinished;
mod wal;
mod write;
mod writes;

#[cfg(test)]
mod tests;

pub use event_log::EventLog;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use async_trait::async_trait;
use ballast::Ballast;
use creel_model::clock::Clock;
use creel_model::id::{LedgerId, ResourceId, RunId};
use creel_model::owner::Owner;
use creel_model::provider::{Kind, ProviderName};
use creel_model::run::RunState;
use creel_model::task;
use database::while_locked;
use sqlx::sqlite::SqlitePool;
use write::Writers;

use crate::Result;
use crate::error::LedgerError;
use crate::event::{Event, StoredEvent};
use crate::owner::OwnerRecord;
use crate::record::{Intent, Record, RecordFilter, Try};
use crate::run::{NewCommand, NewRun, PlacedCommand, RunFilter, RunRecord, WorkflowRecord};
use crate::store::Store;
use crate::unfinished::{Noted, UnfinishedDelete};

/// A ledger in one SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    /// Shared with the tasks that run the writes.
    inner: Arc<StoreInner>,
}

#[derive(Debug)]
struct StoreInner {
    /// The path of the file, for messages.
    path: PathBuf,
    /// Connections to it.
    pool: SqlitePool,
    /// The writers of the file.
    writers: Writers,
    /// The id of the ledger.
    id: LedgerId,
    /// This process, recorded as the actor of its events.
    actor: Owner,
    /// The current boot, recorded in leases.
    boot: String,
    /// The source of the current time.
    clock: Arc<dyn Clock>,
    /// The number of creates that this process has recorded.
    intents: AtomicU32,
}

impl StoreInner {
    fn error(&self, source: sqlx::Error) -> LedgerError {
        database::explain(&self.path, source)
    }
}

impl SqliteStore {
    /// Opens the ledger in a directory, and creates both if they are missing.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason: locked, read-only, full, damaged, too new.
    pub async fn open(home: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        let ballast = Arc::new(Ballast::beside(home));
        Self::open_with(home, clock, ballast).await
    }

    /// Opens the ledger with a ballast that is shared with other files.
    pub(crate) async fn open_with(
        home: &Path,
        clock: Arc<dyn Clock>,
        ballast: Arc<Ballast>,
    ) -> Result<Self> {
        Ok(Self { inner: Arc::new(open::open(home, clock, ballast).await?) })
    }

    /// Creates a ledger with this id in a directory that has none.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason, as [`SqliteStore::open`] does.
    pub async fn begin(home: &Path, id: LedgerId, clock: Arc<dyn Clock>) -> Result<Self> {
        let ballast = Arc::new(Ballast::beside(home));
        Ok(Self { inner: Arc::new(open::open_as(home, &clock, Some(id), &ballast).await?) })
    }

    /// Closes the file. When this returns, everything is in it and nothing is in side files.
    pub async fn close(self) {
        self.inner.pool.close().await;
    }

    /// Restores the record of an earlier run.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    pub async fn restore_run(&self, run: &RunRecord) -> Result<()> {
        let (inner, run) = (Arc::clone(&self.inner), run.clone());
        task::finish(async move { inner.restore_run(&run).await }).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn id(&self) -> LedgerId {
        self.inner.id
    }

    async fn record_intent(&self, intent: &Intent) -> Result<Record> {
        let (inner, intent) = (Arc::clone(&self.inner), intent.clone());
        task::finish(async move { inner.writers.beginning(|| inner.record_intent(&intent)).await })
            .await
    }

    async fn record_existing(&self, intent: &Intent) -> Result<Record> {
        let (inner, intent) = (Arc::clone(&self.inner), intent.clone());
        task::finish(async move { inner.writers.ending(|| inner.record_intent(&intent)).await })
            .await
    }

    async fn append(&self, events: &[(ResourceId, Event)]) -> Result<Vec<Record>> {
        let (inner, events) = (Arc::clone(&self.inner), events.to_vec());
        task::finish(async move { inner.writers.ending(|| inner.append(&events)).await }).await
    }

    async fn take_over(
        &self,
        resources: &[ResourceId],
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Vec<Record>> {
        let (inner, resources) = (Arc::clone(&self.inner), resources.to_vec());
        let (from, heir) = (from.clone(), heir.clone());
        task::finish(async move {
            inner.writers.ending(|| inner.take_over(&resources, &from, &heir)).await
        })
        .await
    }

    async fn renew_leases(&self, owner: &Owner) -> Result<u64> {
        let (inner, owner) = (Arc::clone(&self.inner), owner.clone());
        task::finish(async move { inner.writers.ending(|| inner.renew_leases(&owner)).await }).await
    }

    async fn append_tries(&self, tries: &[Try]) -> Result<()> {
        let (inner, tries) = (Arc::clone(&self.inner), tries.to_vec());
        task::finish(async move { inner.writers.ending(|| inner.append_tries(&tries)).await }).await
    }

    async fn record(&self, id: ResourceId) -> Result<Option<Record>> {
        while_locked(|| self.inner.record(id)).await
    }

    async fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>> {
        while_locked(|| self.inner.records(filter)).await
    }

    async fn history(&self, id: ResourceId) -> Result<Vec<StoredEvent>> {
        while_locked(|| self.inner.history(id)).await
    }

    async fn tries(&self, resource: Option<ResourceId>, limit: u32) -> Result<Vec<Try>> {
        while_locked(|| self.inner.tries(resource, limit)).await
    }

    async fn releases_of(&self, object: &str, limit: u32) -> Result<Vec<Try>> {
        self.inner.releases_of(object, limit).await
    }

    async fn check(&self) -> Result<Vec<String>> {
        while_locked(|| self.inner.check()).await
    }

    async fn create_run(&self, run: &NewRun) -> Result<RunRecord> {
        let (inner, run) = (Arc::clone(&self.inner), run.clone());
        task::finish(async move { inner.writers.beginning(|| inner.create_run(&run)).await }).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunRecord>> {
        while_locked(|| self.inner.run(id)).await
    }

    async fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRecord>> {
        while_locked(|| self.inner.runs(filter)).await
    }

    async fn save_run(&self, id: RunId, owner: &Owner, state: &RunState) -> Result<()> {
        let (inner, owner, state) = (Arc::clone(&self.inner), owner.clone(), state.clone());
        task::finish(
            async move { inner.writers.ending(|| inner.save_run(id, &owner, &state)).await },
        )
        .await
    }

    async fn claim_run(
        &self,
        id: RunId,
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Option<RunRecord>> {
        let (inner, from, heir) = (Arc::clone(&self.inner), from.clone(), heir.clone());
        task::finish(
            async move { inner.writers.ending(|| inner.claim_run(id, &from, &heir)).await },
        )
        .await
    }

    async fn workflow_of(&self, run: RunId) -> Result<Option<WorkflowRecord>> {
        while_locked(|| self.inner.workflow_of(run)).await
    }

    async fn place_command(&self, command: &NewCommand) -> Result<bool> {
        let (inner, command) = (Arc::clone(&self.inner), command.clone());
        task::finish(async move { inner.writers.ending(|| inner.place_command(&command)).await })
            .await
    }

    async fn open_commands(&self, run: RunId) -> Result<Vec<PlacedCommand>> {
        while_locked(|| self.inner.open_commands(run)).await
    }

    async fn complete_command(&self, key: &str) -> Result<bool> {
        let (inner, key) = (Arc::clone(&self.inner), key.to_owned());
        task::finish(async move { inner.writers.ending(|| inner.complete_command(&key)).await })
            .await
    }

    async fn note_unfinished(&self, delete: &UnfinishedDelete) -> Result<Noted> {
        let (inner, delete) = (Arc::clone(&self.inner), delete.clone());
        task::finish(async move { inner.writers.ending(|| inner.note_unfinished(&delete)).await })
            .await
    }

    async fn unfinished_deletes(&self) -> Result<Vec<UnfinishedDelete>> {
        while_locked(|| self.inner.unfinished_deletes()).await
    }

    async fn forget_unfinished(
        &self,
        provider: ProviderName,
        kind: Kind,
        object: &str,
    ) -> Result<()> {
        let (inner, object) = (Arc::clone(&self.inner), object.to_owned());
        let forget = async move {
            inner.writers.ending(|| inner.forget_unfinished(provider, kind, &object)).await
        };
        task::finish(forget).await
    }
}
