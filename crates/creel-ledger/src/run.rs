//! Records of runs: who drives a run, and the state that results from its events.

use std::collections::BTreeMap;
use std::fmt;

use creel_model::id::RunId;
use creel_model::owner::{Liveness, Owner};
use creel_model::provider::ProviderName;
use creel_model::run::{CauseClass, Phase, RunCommand, RunState};
use creel_sanitise::Masked;
use jiff::Timestamp;

use crate::owner::{OnOwnerDeath, OwnerRecord};

/// The user's input for a run. Neither logs nor diagnostics may read it.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkflowRecord {
    /// The origin of the source, for messages about it.
    pub source_name: Masked,
    /// The workflow as written. It contains secrets by reference only.
    pub source: String,
    /// The inputs it was given.
    pub inputs: BTreeMap<String, String>,
}

/// Shows the origin, and nothing of the task.
impl fmt::Debug for WorkflowRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowRecord")
            .field("source_name", &self.source_name)
            .finish_non_exhaustive()
    }
}

/// The data that is recorded before a run starts.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// The new run.
    pub id: RunId,
    /// The name from its workflow.
    pub name: Masked,
    /// The provider its sandbox will live in.
    pub provider: ProviderName,
    /// The owner that drives it.
    pub owner: OwnerRecord,
    /// What happens to it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// The user's input.
    pub workflow: WorkflowRecord,
}

/// The ledger's data about one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The run.
    pub id: RunId,
    /// The name from its workflow.
    pub name: Masked,
    /// The provider its sandbox lives in.
    pub provider: ProviderName,
    /// The owner that drives it, or that drove it last.
    pub owner: OwnerRecord,
    /// What happens to it when the owner dies.
    pub on_owner_death: OnOwnerDeath,
    /// When it was requested, in milliseconds since the epoch.
    pub created_at_ms: i64,
    /// When it last changed, in milliseconds since the epoch.
    pub changed_at_ms: i64,
    /// The state that results from its events.
    pub state: RunState,
}

impl RunRecord {
    /// Checks whether its owner is alive.
    pub fn owner_liveness(&self) -> Liveness {
        self.owner.owner.liveness()
    }

    /// Returns when it was requested.
    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_millisecond(self.created_at_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns whether the run is not final, or its sandbox is kept.
    pub fn is_unfinished(&self) -> bool {
        !self.state.phase.is_final() || self.state.kept_until_ms.is_some()
    }
}

/// Selects runs. An empty filter selects all.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only runs in one of these phases.
    pub phases: Vec<Phase>,
    /// Only runs whose decisive cause is in one of these classes.
    pub classes: Vec<CauseClass>,
    /// Only runs requested at this time or later, in milliseconds since the epoch.
    pub newer_than_ms: Option<i64>,
    /// Only runs requested at this time or earlier, in milliseconds since the epoch.
    pub older_than_ms: Option<i64>,
    /// Only runs of this owner.
    pub owner: Option<Owner>,
    /// Only runs whose id has this prefix.
    pub id_prefix: Option<String>,
    /// Only runs that are not final, or whose sandbox is kept.
    pub unfinished: bool,
}

impl RunFilter {
    /// Selects runs that are not final, or whose sandbox is kept.
    pub fn unfinished() -> Self {
        Self { unfinished: true, ..Self::default() }
    }

    /// Selects only runs of one owner.
    #[must_use]
    pub fn of(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }
}

/// A command for the process that drives a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCommand {
    /// The idempotency key: the command takes effect once, however often it is sent.
    pub key: String,
    /// The run.
    pub run: RunId,
    /// The command.
    pub command: RunCommand,
}

/// A command that waits to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedCommand {
    /// The idempotency key.
    pub key: String,
    /// The run.
    pub run: RunId,
    /// When it was placed, in milliseconds since the epoch.
    pub at_ms: i64,
    /// The command.
    pub command: RunCommand,
}
