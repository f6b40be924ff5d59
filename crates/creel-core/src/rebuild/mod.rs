//! Rebuild of a ledger that has vanished or is damaged.
//!
//! ```text
//!   survey: labels at the providers, names of local sandboxes, the event log  (changes nothing)
//!     ─▶ write: a new file beside the old one ─▶ the old one is put aside ─▶ the new one is put
//!        in its place
//! ```
//!
//! The new ledger has the id of the old one, so it owns everything that carries its label. A record
//! is created only for an object that proves its ownership: one with this ledger's label and the
//! exact name of its create that did not inherit the label, or a sandbox in this ledger's own
//! directory. Everything else is reported and left alone. Nothing is released here: a later
//! reconcile does that, once a user has seen the list.
//!
//! A crash before the last step leaves no ledger in place, which every command reports. The rebuild
//! is then run again.

mod survey;
mod write;

use std::path::Path;

use creel_ledger::{Ledger, LedgerError, OwnerRecord};
use creel_model::id::{LedgerId, ResourceId, RunId};
use creel_model::provider::{Observed, ProviderError};
use creel_model::run::RunState;

pub use survey::survey;
pub use write::{begin_anew, write};

/// Why a rebuild failed.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The ledger is valid.
    #[error("the ledger is sound: there is nothing to rebuild")]
    NotNeeded,
    /// The id of the ledger is unknown.
    #[error("nothing here says which ledger this was")]
    NoId,
    /// The ledger or a file beside it cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The contents of the new ledger.
#[derive(Debug)]
#[must_use]
pub struct RebuildSurvey {
    /// Its id.
    pub ledger: LedgerId,
    /// The resources to record.
    pub resources: Vec<FoundResource>,
    /// The runs of the event log.
    pub runs: Vec<FoundRun>,
    /// Objects that may belong to this ledger, without proof.
    pub unproven: Vec<Unproven>,
    /// Runs whose events could not be read, and why.
    pub unreadable: Vec<String>,
    /// Providers that could not be reached.
    pub unreachable: Vec<ProviderError>,
}

/// An object that provably belongs to this ledger.
#[derive(Debug)]
pub struct FoundResource {
    /// The resource it was created for.
    pub resource: ResourceId,
    /// The run it was created for, if its label names one.
    pub run: Option<RunId>,
    /// The object.
    pub seen: Observed,
    /// The owner that was responsible for it.
    pub owner: OwnerRecord,
    /// The proof.
    pub evidence: &'static str,
}

/// A run of the event log.
#[derive(Debug)]
pub struct FoundRun {
    /// The run.
    pub run: RunId,
    /// The state that results from its events.
    pub state: RunState,
    /// When its first event was written, in milliseconds since the epoch.
    pub began_at_ms: i64,
    /// When its newest event was written, in milliseconds since the epoch.
    pub changed_at_ms: i64,
}

/// An object that claims to belong to this ledger without proof.
#[derive(Debug)]
pub struct Unproven {
    /// The object.
    pub seen: Observed,
    /// The missing proof.
    pub reason: &'static str,
}

/// Describes the damage of the ledger in a directory; `None` if it is valid.
///
/// # Errors
///
/// Fails when the ledger cannot be checked: it is read-only, its disk is full, or a newer creel
/// wrote it.
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
