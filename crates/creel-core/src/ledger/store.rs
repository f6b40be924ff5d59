//! The store: domain operations, whatever database is behind them.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::{Clock, SystemClock};
use crate::id::{LedgerId, ResourceId};
use crate::owner::Owner;

use super::{
    Event, Intent, OwnerRecord, Record, RecordFilter, Result, SqliteStore, StoredEvent, Try,
};

/// Keeps records. Every write is one durable transaction: after a crash it is there in
/// whole or not at all, and when the call has returned it is there.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns which ledger this is.
    fn id(&self) -> LedgerId;

    /// Records that something is about to be created.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable: then nothing may be created.
    async fn record_intent(&self, intent: &Intent) -> Result<Record>;

    /// Appends events, all or none, and returns the records after them.
    ///
    /// # Errors
    ///
    /// Fails when an event does not fit or could not be made durable.
    async fn append(&self, events: &[(ResourceId, Event)]) -> Result<Vec<Record>>;

    /// Gives open records of one owner to another, in one step, and returns those it got.
    ///
    /// Only one of several heirs at once gets a record: it must still be the old owner's.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn take_over(
        &self,
        resources: &[ResourceId],
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Vec<Record>>;

    /// Renews the leases of all open records of an owner.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn renew_leases(&self, owner: &Owner) -> Result<u64>;

    /// Appends tries to the audit.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn append_tries(&self, tries: &[Try]) -> Result<()>;

    /// Returns one record.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn record(&self, id: ResourceId) -> Result<Option<Record>>;

    /// Returns the wanted records, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>>;

    /// Returns the events of one resource, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn history(&self, id: ResourceId) -> Result<Vec<StoredEvent>>;

    /// Returns the newest tries, newest first; of one resource where one is named.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn tries(&self, resource: Option<ResourceId>, limit: u32) -> Result<Vec<Try>>;

    /// Checks the whole store: the file's integrity, and that replaying every log gives the
    /// state that is stored. Returns one sentence for each thing that is wrong.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn check(&self) -> Result<Vec<String>>;
}

/// A handle on a ledger; cheap to clone.
#[derive(Debug, Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
}

impl Ledger {
    /// Opens the ledger in a directory, making both where they are missing.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason; a ledger that cannot be opened must stop every create.
    pub async fn open(home: &Path) -> Result<Self> {
        Self::open_with_clock(home, Arc::new(SystemClock)).await
    }

    /// Opens the ledger with a clock of the caller's.
    ///
    /// # Errors
    ///
    /// See [`Ledger::open`].
    pub async fn open_with_clock(home: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self { store: Arc::new(SqliteStore::open(home, clock).await?) })
    }

    /// Returns the path of the ledger file in a directory.
    pub fn path(home: &Path) -> std::path::PathBuf {
        home.join("ledger.db")
    }
}

impl Deref for Ledger {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref()
    }
}
