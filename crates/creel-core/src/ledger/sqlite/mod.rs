//! The store on SQLite: one file, safe for several processes at once.
//!
//! WAL with `synchronous = FULL`: a commit is on disk when it returns. Writes
//! begin with `BEGIN IMMEDIATE`, so two processes queue instead of failing, and
//! run in their own task, so a cancelled caller cannot cut one in half.

mod open;
mod reads;
mod rows;
mod writes;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::SqlitePool;

use crate::clock::Clock;
use crate::id::{LedgerId, ResourceId};
use crate::owner::Owner;
use crate::task;

use super::{
    Event, Intent, LedgerError, OwnerRecord, Record, RecordFilter, Result, Store, StoredEvent, Try,
};

/// A ledger in one SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    /// Shared with the tasks that run the writes.
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where the file is, for messages.
    path: PathBuf,
    /// Connections to it.
    pool: SqlitePool,
    /// Which ledger it is.
    id: LedgerId,
    /// This process, as it signs its events.
    actor: String,
    /// This boot, to date leases by.
    boot: String,
    /// Where the time comes from.
    clock: Arc<dyn Clock>,
}

impl Inner {
    fn error(&self, source: sqlx::Error) -> LedgerError {
        open::explain(&self.path, source)
    }
}

impl SqliteStore {
    /// Opens the ledger in a directory, making both where they are missing.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason: locked, read-only, full, damaged, too new.
    pub async fn open(home: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { inner: Arc::new(open::open(home, clock).await?) })
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn id(&self) -> LedgerId {
        self.inner.id
    }

    async fn record_intent(&self, intent: &Intent) -> Result<Record> {
        let (inner, intent) = (Arc::clone(&self.inner), intent.clone());
        task::finish(async move { inner.record_intent(&intent).await }).await
    }

    async fn append(&self, events: &[(ResourceId, Event)]) -> Result<Vec<Record>> {
        let (inner, events) = (Arc::clone(&self.inner), events.to_vec());
        task::finish(async move { inner.append(&events).await }).await
    }

    async fn take_over(
        &self,
        resources: &[ResourceId],
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Vec<Record>> {
        let (inner, resources) = (Arc::clone(&self.inner), resources.to_vec());
        let (from, heir) = (from.clone(), heir.clone());
        task::finish(async move { inner.take_over(&resources, &from, &heir).await }).await
    }

    async fn renew_leases(&self, owner: &Owner) -> Result<u64> {
        let (inner, owner) = (Arc::clone(&self.inner), owner.clone());
        task::finish(async move { inner.renew_leases(&owner).await }).await
    }

    async fn append_tries(&self, tries: &[Try]) -> Result<()> {
        let (inner, tries) = (Arc::clone(&self.inner), tries.to_vec());
        task::finish(async move { inner.append_tries(&tries).await }).await
    }

    async fn record(&self, id: ResourceId) -> Result<Option<Record>> {
        self.inner.record(id).await
    }

    async fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>> {
        self.inner.records(filter).await
    }

    async fn history(&self, id: ResourceId) -> Result<Vec<StoredEvent>> {
        self.inner.history(id).await
    }

    async fn tries(&self, resource: Option<ResourceId>, limit: u32) -> Result<Vec<Try>> {
        self.inner.tries(resource, limit).await
    }

    async fn check(&self) -> Result<Vec<String>> {
        self.inner.check().await
    }
}
