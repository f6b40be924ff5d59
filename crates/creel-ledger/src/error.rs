//! Errors of the ledger.

use std::io;
use std::path::PathBuf;

use creel_model::id::{LedgerId, ResourceId, RunId};

use super::IllegalTransition;

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
