//! Errors of the ledger, and of the records of runs in it.

use std::io;
use std::path::PathBuf;

use creel_model::id::{LedgerId, ResourceId, RunId};
use creel_model::run::IllegalEvent;

use crate::state::IllegalTransition;

/// A failed ledger operation. No error leaves a partial write.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The directory or a file beside the ledger cannot be used.
    #[error("cannot use {}", path.display())]
    Home {
        /// Which path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has locked the ledger for too long.
    #[error("the ledger {} is locked by another process", path.display())]
    Locked {
        /// The ledger.
        path: PathBuf,
    },
    /// The ledger is not writable.
    #[error("the ledger {} is read-only", path.display())]
    ReadOnly {
        /// The ledger.
        path: PathBuf,
    },
    /// There is no space left to write the ledger.
    #[error("the disk that holds the ledger {} is full", path.display())]
    DiskFull {
        /// The ledger.
        path: PathBuf,
    },
    /// The file is not a valid ledger.
    #[error("the ledger {} is damaged: {detail}", path.display())]
    Corrupt {
        /// The ledger.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The ledger that existed here is missing or empty.
    #[error("the ledger {} is missing or empty, but {traces} are left of it", path.display())]
    Vanished {
        /// The expected path.
        path: PathBuf,
        /// What is left of it.
        traces: String,
    },
    /// The ledger is not the one that this directory belongs to.
    #[error("the ledger {} is {found}, but its directory belongs to {expected}", path.display())]
    OtherLedger {
        /// The ledger.
        path: PathBuf,
        /// The id it has.
        found: LedgerId,
        /// The id in the file beside it.
        expected: LedgerId,
    },
    /// The ledger was written by a newer creel.
    #[error("the ledger {} was written by a newer creel (schema {found}, this one knows {known})", path.display())]
    NewerSchema {
        /// The ledger.
        path: PathBuf,
        /// The schema it has.
        found: i64,
        /// The newest schema that this version supports.
        known: i64,
    },
    /// The resource is not on this ledger.
    #[error("{id} is not on this ledger")]
    Unknown {
        /// The resource.
        id: ResourceId,
    },
    /// The event is not legal in the resource's state.
    #[error("the ledger refused a change of {id}")]
    Illegal {
        /// The resource.
        id: ResourceId,
        /// Why.
        source: IllegalTransition,
    },
    /// The run is not on this ledger.
    #[error("{run} is not on this ledger")]
    UnknownRun {
        /// The run.
        run: RunId,
    },
    /// Another process drives the run now.
    #[error("{run} is driven by another process now ({owner})")]
    NotOwner {
        /// The run.
        run: RunId,
        /// The owner that drives it.
        owner: String,
    },
    /// The database failed for another reason.
    #[error("the ledger {} failed", path.display())]
    Database {
        /// The ledger.
        path: PathBuf,
        /// The database error.
        source: sqlx::Error,
    },
}

impl LedgerError {
    /// Returns whether releases of untracked objects may continue without the ledger.
    pub fn allows_untracked_release(&self) -> bool {
        matches!(self, Self::ReadOnly { .. } | Self::DiskFull { .. } | Self::Home { .. })
    }
}

/// The error of an operation on the records of a run.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// A file could not be used: locked, read-only, full, damaged. Nothing was written.
    #[error(transparent)]
    Store(#[from] LedgerError),
    /// The event is illegal in the current state of the run. Nothing was written.
    #[error("the records of {run} refused an event")]
    Illegal {
        /// The run.
        run: RunId,
        /// The event, and the state it does not fit.
        source: IllegalEvent,
    },
    /// Another process has written to the log since this one read it. Nothing was written.
    ///
    /// The caller must reopen the run or leave it.
    #[error("another process has written event {sequence} of {run}")]
    Overtaken {
        /// The run.
        run: RunId,
        /// The number that this process tried to use.
        sequence: u64,
    },
    /// The log lacks events that were recorded: its file was lost or restored from an older copy.
    #[error("the log of {run} ends at event {logged}, but events up to {held} were recorded")]
    Incomplete {
        /// The run.
        run: RunId,
        /// The newest event in the log.
        logged: u64,
        /// The newest event that was recorded.
        held: u64,
    },
    /// The event is in the log and counts, but its row could not be saved.
    ///
    /// The next event saves the row, and so does the next owner of the run.
    #[error("the event is in the log of {run}, but its row could not be saved")]
    RowBehind {
        /// The run.
        run: RunId,
        /// Why it could not be saved.
        source: LedgerError,
    },
}

/// An error that can mean that another process has locked the database.
pub(crate) trait WhenLocked {
    /// Returns whether the database is locked.
    fn is_locked(&self) -> bool;
}

impl WhenLocked for LedgerError {
    fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }
}

impl WhenLocked for RecordsError {
    fn is_locked(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_locked())
    }
}

/// An error that can mean that the disk is full.
pub trait WhenFull {
    /// Returns whether the disk is full.
    fn is_disk_full(&self) -> bool;
}

impl WhenFull for LedgerError {
    fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }
}

impl WhenFull for RecordsError {
    fn is_disk_full(&self) -> bool {
        match self {
            Self::Store(source) | Self::RowBehind { source, .. } => source.is_disk_full(),
            Self::Illegal { .. } | Self::Overtaken { .. } | Self::Incomplete { .. } => false,
        }
    }
}
