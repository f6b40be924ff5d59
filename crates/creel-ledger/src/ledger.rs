//! The ledger as its users see it: a store, and the event log beside it.
//!
//! This is where a ledger is opened, and where its kind of store is chosen. Everything else knows
//! only the [`Store`] trait.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use creel_model::clock::{Clock, SystemClock};
use creel_model::id::LedgerId;
use tokio::sync::OnceCell;
use tracing::warn;

use crate::deferred::DeferredTries;
use crate::sqlite::ballast::Ballast;
use crate::sqlite::{EventLog, SqliteStore};
use crate::store::Store;
use crate::{Result, Try, files, presence};

/// A handle on a ledger; cheap to clone.
#[derive(Debug, Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
    /// The events of runs, in a separate file that is opened on first use.
    log: Arc<LogBeside>,
}

/// The event log of a ledger.
#[derive(Debug)]
struct LogBeside {
    /// The directory of both files.
    home: PathBuf,
    /// The source of the current time.
    clock: Arc<dyn Clock>,
    /// The log, once it is open.
    open: OnceCell<EventLog>,
    /// The space that both files use on a full disk.
    ballast: Arc<Ballast>,
    /// Entries of the audit for which there was no space.
    deferred: Arc<DeferredTries>,
    /// Maximum number of bytes of agent output in the log of one run.
    text_limit: u64,
}

impl LogBeside {
    async fn open(&self) -> Result<EventLog> {
        EventLog::open_with(&self.home, Arc::clone(&self.ballast)).await
    }
}

/// Default maximum number of bytes of agent output in the log of one run.
const TEXT_LIMIT: u64 = 256 << 20;

impl Ledger {
    /// Opens the ledger in a directory, and creates both if they are missing.
    ///
    /// # Errors
    ///
    /// Fails with the exact reason. A ledger that cannot be opened must stop every create.
    pub async fn open(home: &Path) -> Result<Self> {
        Self::open_with_clock(home, Arc::new(SystemClock)).await
    }

    /// Opens the ledger with the given clock.
    ///
    /// # Errors
    ///
    /// See [`Ledger::open`].
    pub async fn open_with_clock(home: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        // The store reports a directory that cannot be created.
        let _ = files::make_private_directory(home);
        let ballast = Arc::new(Ballast::beside(home));
        let store = SqliteStore::open_with(home, Arc::clone(&clock), Arc::clone(&ballast)).await?;
        let log = LogBeside {
            home: home.to_owned(),
            clock,
            open: OnceCell::new(),
            ballast,
            deferred: Arc::default(),
            text_limit: TEXT_LIMIT,
        };
        Ok(Self { store: Arc::new(store), log: Arc::new(log) })
    }

    /// Sets the maximum number of bytes of agent output in the log of one run.
    ///
    /// Output beyond the limit is counted and dropped.
    #[must_use]
    pub fn with_text_limit(self, bytes: u64) -> Self {
        let log = LogBeside {
            home: self.log.home.clone(),
            clock: Arc::clone(&self.log.clock),
            open: OnceCell::new_with(self.log.open.get().cloned()),
            ballast: Arc::clone(&self.log.ballast),
            deferred: Arc::clone(&self.log.deferred),
            text_limit: bytes,
        };
        Self { log: Arc::new(log), ..self }
    }

    /// Returns the maximum number of bytes of agent output in the log of one run.
    pub fn text_limit(&self) -> u64 {
        self.log.text_limit
    }

    /// Returns whether this process met a full disk that has had no space since.
    pub fn is_disk_full(&self) -> bool {
        self.log.ballast.is_disk_full()
    }

    /// Returns whether this process has ever met a full disk, or found the reserve for one used up.
    pub fn was_disk_full(&self) -> bool {
        self.log.ballast.was_disk_full()
    }

    /// Returns whether nothing can be written through this handle, not even when there is space
    /// again: it was opened on a disk without any.
    pub fn is_unwritable(&self) -> bool {
        self.log.ballast.is_unwritable()
    }

    /// Checks whether the disk is full now.
    pub fn check_disk(&self) -> bool {
        self.log.ballast.check_disk()
    }

    /// Keeps entries of the audit that could not be written, for [`Ledger::write_deferred_tries`].
    pub fn defer_tries(&self, tries: Vec<Try>) {
        self.log.deferred.add(tries);
    }

    /// Writes the entries of the audit for which there was no space before. Returns how many are
    /// still not written.
    pub async fn write_deferred_tries(&self) -> usize {
        let tries = self.log.deferred.take();
        if !tries.is_empty()
            && let Err(error) = self.append_tries(&tries).await
        {
            warn!(%error, waiting = tries.len(), "the audit waits for room");
            self.log.deferred.add(tries);
        }
        self.log.deferred.count()
    }

    /// Waits until the disk is full.
    pub async fn disk_full(&self) {
        self.log.ballast.disk_full().await;
    }

    /// Returns the event log, and opens its file on first use.
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

    /// Returns the source of the current time.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.log.clock
    }

    /// Returns the id of the ledger in a directory from its id file, without opening the ledger.
    pub fn recorded_id(home: &Path) -> Option<LedgerId> {
        presence::recorded_id(home)
    }

    /// Returns whether a ledger was created in a directory, even if it has vanished since.
    pub fn is_begun(home: &Path) -> bool {
        presence::has_content(&Self::path(home)) || !presence::traces(home).is_empty()
    }

    /// Returns the directory for the process provider's sandboxes.
    pub fn sandboxes(home: &Path) -> PathBuf {
        files::sandboxes(home)
    }

    /// Returns the path of the ledger file in a directory.
    pub fn path(home: &Path) -> PathBuf {
        files::ledger(home)
    }
}

impl Deref for Ledger {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref()
    }
}
