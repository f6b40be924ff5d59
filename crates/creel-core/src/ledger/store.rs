//! The store: domain operations, whatever database is behind them.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::clock::{Clock, SystemClock};
use crate::id::{LedgerId, ResourceId, RunId};
use crate::owner::Owner;
use crate::provider::{Kind, ProviderName};
use crate::run::RunState;
use crate::run::records::EventLog;

use super::ballast::Ballast;
use super::database::make_private_directory;
use super::{
    Event, Intent, NewOrder, NewRun, Noted, OwnerRecord, PlacedOrder, Record, RecordFilter, Result,
    RunFilter, RunRecord, SqliteStore, StoredEvent, Try, UnfinishedDelete, WorkflowRecord,
    presence,
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

    /// As [`Store::record_intent`], of something that exists or is being created already. It is
    /// there whether it can be recorded or not, so the space kept for a full disk is used.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn record_existing(&self, intent: &Intent) -> Result<Record>;

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

    /// Returns the newest tries to release something, newest first: by the object's id or at
    /// least twelve characters of it, by its name, or by the resource.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn releases_of(&self, what: &str, limit: u32) -> Result<Vec<Try>>;

    /// Checks the whole store: the file's integrity, and that replaying every log gives the
    /// state that is stored. Returns one sentence for each thing that is wrong.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn check(&self) -> Result<Vec<String>>;

    /// Records that a run was asked for, with what people wrote for it.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable: then nothing of it may happen.
    async fn create_run(&self, run: &NewRun) -> Result<RunRecord>;

    /// Returns one run.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn run(&self, id: RunId) -> Result<Option<RunRecord>>;

    /// Returns the wanted runs, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRecord>>;

    /// Saves what the events of a run have made of it. A state that is older than the saved one
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// Fails when somebody else drives the run now, or when it could not be made durable.
    async fn save_run(&self, id: RunId, owner: &Owner, state: &RunState) -> Result<()>;

    /// Gives a run of one owner to another, in one step; returns it, or nothing when it is not
    /// the old owner's any more. Of several heirs at once only one gets it.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn claim_run(
        &self,
        id: RunId,
        from: &Owner,
        heir: &OwnerRecord,
    ) -> Result<Option<RunRecord>>;

    /// Returns what people wrote for a run; only for whoever drives it.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn workflow_of(&self, run: RunId) -> Result<Option<WorkflowRecord>>;

    /// Leaves an order for whoever drives a run; returns whether its key is new. One whose key
    /// is known already is not placed again.
    ///
    /// # Errors
    ///
    /// Fails when there is no such run, or when it could not be made durable.
    async fn place_order(&self, order: &NewOrder) -> Result<bool>;

    /// Returns the orders for a run that nobody has taken, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn open_orders(&self, run: RunId) -> Result<Vec<PlacedOrder>>;

    /// Marks an order as taken; returns whether it was open until now.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn take_order(&self, key: &str) -> Result<bool>;

    /// Remembers a delete that was accepted and did not finish. Of one that is on record already
    /// the reason is replaced, and the first date stays.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn note_unfinished(&self, delete: &UnfinishedDelete) -> Result<Noted>;

    /// Returns the deletes that were accepted and did not finish, oldest first.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    async fn unfinished_deletes(&self) -> Result<Vec<UnfinishedDelete>>;

    /// Forgets an unfinished delete, because the absence of its object is verified.
    ///
    /// # Errors
    ///
    /// Fails when it could not be made durable.
    async fn forget_unfinished(
        &self,
        provider: ProviderName,
        kind: Kind,
        object: &str,
    ) -> Result<()>;
}

/// A handle on a ledger; cheap to clone.
#[derive(Debug, Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
    /// The events of runs, in a file beside it; opened when it is first asked for.
    log: Arc<LogBeside>,
}

/// The event log of a ledger.
#[derive(Debug)]
struct LogBeside {
    /// The directory both are in.
    home: PathBuf,
    /// Where the time comes from.
    clock: Arc<dyn Clock>,
    /// The log, once it is open.
    open: OnceCell<EventLog>,
    /// The space that both use on a full disk.
    ballast: Arc<Ballast>,
    /// How many bytes of the agent's output the log of one run takes.
    text_limit: u64,
}

impl LogBeside {
    async fn open(&self) -> Result<EventLog> {
        EventLog::open_with(&self.home, Arc::clone(&self.ballast)).await
    }
}

/// How many bytes of the agent's output the log of one run takes, unless the caller says otherwise.
const TEXT_LIMIT: u64 = 256 << 20;

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
        // A directory that cannot be made is named by the store.
        let _ = make_private_directory(home);
        let ballast = Arc::new(Ballast::beside(home));
        let store = SqliteStore::open_with(home, Arc::clone(&clock), Arc::clone(&ballast)).await?;
        let log = LogBeside {
            home: home.to_owned(),
            clock,
            open: OnceCell::new(),
            ballast,
            text_limit: TEXT_LIMIT,
        };
        Ok(Self { store: Arc::new(store), log: Arc::new(log) })
    }

    /// Sets how many bytes of the agent's output the log of one run takes; what is beyond is
    /// counted and dropped.
    #[must_use]
    pub fn with_text_limit(self, bytes: u64) -> Self {
        let log = LogBeside {
            home: self.log.home.clone(),
            clock: Arc::clone(&self.log.clock),
            open: OnceCell::new_with(self.log.open.get().cloned()),
            ballast: Arc::clone(&self.log.ballast),
            text_limit: bytes,
        };
        Self { log: Arc::new(log), ..self }
    }

    /// Returns how many bytes of the agent's output the log of one run takes.
    pub fn text_limit(&self) -> u64 {
        self.log.text_limit
    }

    /// Returns whether this process has met a full disk that has had no room since.
    pub fn is_disk_full(&self) -> bool {
        self.log.ballast.is_disk_full()
    }

    /// Returns whether this process has ever met a full disk.
    pub fn was_disk_full(&self) -> bool {
        self.log.ballast.was_disk_full()
    }

    /// Looks whether the disk is full now.
    pub fn check_disk(&self) -> bool {
        self.log.ballast.check_disk()
    }

    /// Waits until the disk is full.
    pub async fn disk_full(&self) {
        self.log.ballast.disk_full().await;
    }

    /// Returns the events of runs, opening their file where that was not done yet.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason, as [`Ledger::open`] does.
    pub async fn event_log(&self) -> Result<&EventLog> {
        self.log.open.get_or_try_init(|| self.log.open()).await
    }

    /// Returns the directory that the ledger is in.
    pub fn home(&self) -> &Path {
        &self.log.home
    }

    /// Returns where the time comes from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.log.clock
    }

    /// Returns the id of the ledger in a directory without opening it, as its id file has it.
    pub fn recorded_id(home: &Path) -> Option<LedgerId> {
        presence::recorded_id(home)
    }

    /// Returns whether a ledger was begun in a directory, even where it has vanished since.
    pub fn is_begun(home: &Path) -> bool {
        presence::has_content(&Self::path(home)) || !presence::traces(home).is_empty()
    }

    /// Returns where the sandboxes of the process provider are in a directory.
    pub fn sandboxes(home: &Path) -> PathBuf {
        home.join("sandboxes")
    }

    /// Returns the path of the ledger file in a directory.
    pub fn path(home: &Path) -> PathBuf {
        home.join("ledger.db")
    }
}

impl Deref for Ledger {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref()
    }
}
