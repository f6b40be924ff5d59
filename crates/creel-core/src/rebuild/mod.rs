//! Making a ledger again that has vanished or is damaged.
//!
//! ```text
//!   survey: labels at the providers, names of local sandboxes, the event log  (changes nothing)
//!     ─▶ write: a new file beside the old one ─▶ the old one is put aside ─▶ the new one is put
//!        in its place
//! ```
//!
//! The new ledger has the id of the old one, so everything that carries its label is its own. A
//! record is made only for what proves itself: an object with this ledger's label and the exact
//! name of its create, which did not inherit the label; or a sandbox in this ledger's own
//! directory. Everything else is reported and left alone. Nothing is released here: that is for a
//! later reconcile, once somebody has seen the list.
//!
//! A crash before the last step leaves no ledger in place, which every command reports; the
//! rebuild is then run again.

mod survey;
mod write;

use std::path::Path;

use crate::id::{LedgerId, ResourceId, RunId};
use crate::ledger::{Ledger, LedgerError, OwnerRecord};
use crate::provider::{Observed, ProviderError};
use crate::run::RunState;

pub use survey::survey;
pub use write::{begin_anew, write};

/// A rebuild that cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The ledger is fine.
    #[error("the ledger is sound: there is nothing to rebuild")]
    NotNeeded,
    /// Nothing says which ledger it was.
    #[error("nothing here says which ledger this was")]
    NoId,
    /// The ledger or a file beside it cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What a new ledger would hold.
#[derive(Debug)]
#[must_use]
pub struct Survey {
    /// The id it would have.
    pub ledger: LedgerId,
    /// What would be on record.
    pub resources: Vec<FoundResource>,
    /// The runs of the event log.
    pub runs: Vec<FoundRun>,
    /// What may be of this ledger, and is not proven to be.
    pub unproven: Vec<Unproven>,
    /// Runs whose events could not be read, and why.
    pub unreadable: Vec<String>,
    /// Providers that could not be asked.
    pub unreachable: Vec<ProviderError>,
}

/// An object that proves itself to be of this ledger.
#[derive(Debug)]
pub struct FoundResource {
    /// The resource it was made for.
    pub resource: ResourceId,
    /// The run it was made for, where its label names one.
    pub run: Option<RunId>,
    /// The object.
    pub seen: Observed,
    /// Who answered for it.
    pub owner: OwnerRecord,
    /// What proves it.
    pub evidence: &'static str,
}

/// A run of the event log.
#[derive(Debug)]
pub struct FoundRun {
    /// The run.
    pub run: RunId,
    /// What its events have made of it.
    pub state: RunState,
    /// When its first event was written, in milliseconds since the epoch.
    pub began_at_ms: i64,
    /// When its newest event was written.
    pub changed_at_ms: i64,
}

/// An object that claims to be of this ledger without proof.
#[derive(Debug)]
pub struct Unproven {
    /// The object.
    pub seen: Observed,
    /// What is missing.
    pub reason: &'static str,
}

/// Says what is wrong with the ledger in a directory; `None` where it is sound.
///
/// # Errors
///
/// Fails when that cannot be told: it is read-only, its disk is full, a newer creel wrote it.
pub async fn damage(home: &Path) -> Result<Option<String>, LedgerError> {
    let checked = async { Ledger::open(home).await?.check().await };
    match checked.await {
        Ok(problems) if problems.is_empty() => Ok(None),
        Ok(problems) => Ok(Some(problems.join("; "))),
        Err(
            error @ (LedgerError::Vanished { .. }
            | LedgerError::Corrupt { .. }
            | LedgerError::OtherLedger { .. }),
        ) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}
