//! Errors of the records of a run.

use creel_model::id::RunId;
use creel_model::run::IllegalEvent;

use crate::LedgerError;
use crate::database::WhenLocked;
use crate::write::WhenFull;

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

impl WhenLocked for RecordsError {
    fn is_locked(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_locked())
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
