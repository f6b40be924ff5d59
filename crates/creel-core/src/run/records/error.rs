//! What can be wrong with the records of a run.

use crate::id::RunId;
use crate::ledger::LedgerError;
use crate::ledger::database::WhenLocked;
use crate::ledger::write::WhenFull;
use crate::run::IllegalEvent;

/// An operation on the records of a run that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// A file could not be used: locked, read-only, full, damaged. Nothing was written.
    #[error(transparent)]
    Store(#[from] LedgerError),
    /// The event does not fit what is known of the run. Nothing was written.
    #[error("the records of {run} refused an event")]
    Illegal {
        /// The run.
        run: RunId,
        /// Which event, and where the run is.
        source: IllegalEvent,
    },
    /// Another process has written to the log since this one read it: take the run up again, or
    /// leave it. Nothing was written.
    #[error("another process has written event {sequence} of {run}")]
    Overtaken {
        /// The run.
        run: RunId,
        /// The number that was to be given out.
        sequence: u64,
    },
    /// The log lacks events that were recorded: its file was lost or set back.
    #[error("the log of {run} ends at event {logged}, but events up to {held} were recorded")]
    Incomplete {
        /// The run.
        run: RunId,
        /// The newest event it has.
        logged: u64,
        /// The newest event it should have.
        held: u64,
    },
    /// The event is in the log and counts, but the row that shows it could not be saved. The
    /// next event saves it, and so does whoever takes the run up.
    #[error("the event is in the log of {run}, but its row could not be saved")]
    RowBehind {
        /// The run.
        run: RunId,
        /// Why.
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
