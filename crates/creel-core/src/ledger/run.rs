//! Records of runs: who drives one, and what its events have made of it.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use crate::id::RunId;
use crate::owner::{Liveness, Owner};
use crate::provider::ProviderName;
use crate::run::{CauseClass, Order, Phase, RunState};
use crate::sanitise::Masked;

use super::{OnOwnerDeath, OwnerRecord};

/// What people wrote for a run; neither logs nor diagnostics may read it.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkflowRecord {
    /// Where the source came from, for messages about it.
    pub source_name: Masked,
    /// The workflow as it was written; it has secrets by reference only.
    pub source: String,
    /// The inputs it was given.
    pub inputs: BTreeMap<String, String>,
}

/// Shows where it came from, and not a word of the task.
impl fmt::Debug for WorkflowRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowRecord")
            .field("source_name", &self.source_name)
            .finish_non_exhaustive()
    }
}

/// What is recorded before anything of a run happens.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// The new run.
    pub id: RunId,
    /// What its workflow calls itself.
    pub name: Masked,
    /// The world its sandbox will live in.
    pub provider: ProviderName,
    /// Who drives it.
    pub owner: OwnerRecord,
    /// What becomes of it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// What people wrote for it.
    pub workflow: WorkflowRecord,
}

/// What the ledger knows of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The run.
    pub id: RunId,
    /// What its workflow calls itself.
    pub name: Masked,
    /// The world its sandbox lives in.
    pub provider: ProviderName,
    /// Who drives it, or did so last.
    pub owner: OwnerRecord,
    /// What becomes of it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// When it was asked for, in milliseconds since the epoch.
    pub created_at_ms: i64,
    /// When it changed last, in milliseconds since the epoch.
    pub changed_at_ms: i64,
    /// What its events have made of it.
    pub state: RunState,
}

impl RunRecord {
    /// Judges whether its owner still lives.
    pub fn owner_liveness(&self) -> Liveness {
        self.owner.owner.liveness()
    }

    /// Returns when it was asked for.
    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_millisecond(self.created_at_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns whether something is still to come: it is not over, or its sandbox is kept.
    pub fn is_unsettled(&self) -> bool {
        !self.state.phase.is_final() || self.state.kept_until_ms.is_some()
    }
}

/// Which runs are wanted; an empty filter wants all.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only those in one of these phases.
    pub phases: Vec<Phase>,
    /// Only those whose cause that counts is of one of these classes.
    pub classes: Vec<CauseClass>,
    /// Only those asked for at this time or later, in milliseconds since the epoch.
    pub newer_than_ms: Option<i64>,
    /// Only those asked for at this time or before, in milliseconds since the epoch.
    pub older_than_ms: Option<i64>,
    /// Only those of this owner.
    pub owner: Option<Owner>,
    /// Only those whose id begins like this.
    pub id_prefix: Option<String>,
    /// Only those of which something is still to come.
    pub unsettled: bool,
}

impl RunFilter {
    /// Wants those of which something is still to come.
    pub fn unsettled() -> Self {
        Self { unsettled: true, ..Self::default() }
    }

    /// Wants only those of one owner.
    #[must_use]
    pub fn of(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

/// What somebody wants of whoever drives a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    /// Makes it happen once, however often it is sent.
    pub key: String,
    /// The run.
    pub run: RunId,
    /// What is wanted.
    pub order: Order,
}

/// An order as it waits to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedOrder {
    /// Makes it happen once.
    pub key: String,
    /// The run.
    pub run: RunId,
    /// When it was placed, in milliseconds since the epoch.
    pub at_ms: i64,
    /// What is wanted.
    pub order: Order,
}
