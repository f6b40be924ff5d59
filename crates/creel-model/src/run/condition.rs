//! Conditions: what is known about a run, each with its reason and the time of
//! its last change.

use creel_sanitise::{Diagnostic, Masked};
use serde::{Deserialize, Serialize};

/// The subject of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionType {
    /// The sandbox exists and answers.
    SandboxReady,
    /// Files and repositories are as the workflow requires.
    WorkspaceReady,
    /// The agent program has been proven to run.
    AgentLaunchable,
    /// The capabilities of the agent were probed.
    CapabilitiesKnown,
    /// The model answers.
    ModelReachable,
    /// The bridge sends events or signs of life.
    AgentConnected,
    /// The run makes progress.
    Progressing,
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The subject of the condition.
    #[serde(rename = "type")]
    pub about: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The reason as one identifier, for machines.
    pub reason: Masked,
    /// The reason in one sentence, for people.
    pub message: Diagnostic,
    /// The time of the last status change, in milliseconds since the epoch.
    pub last_transition_ms: i64,
}
