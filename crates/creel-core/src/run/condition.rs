//! Conditions: what is known to be true of a run, each with its reason and since when.

use serde::{Deserialize, Serialize};

use crate::sanitise::{Diagnostic, Masked};

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionType {
    /// The sandbox is there and answers.
    SandboxReady,
    /// Files and repositories are as the workflow wants them.
    WorkspaceReady,
    /// The agent program was proven to run.
    AgentLaunchable,
    /// What the agent may do was probed.
    CapabilitiesKnown,
    /// The model answers.
    ModelReachable,
    /// The bridge is heard.
    AgentConnected,
    /// Something happens.
    Progressing,
}

/// Whether it is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It is.
    True,
    /// It is not.
    False,
    /// Nobody knows.
    Unknown,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub about: ConditionType,
    /// Whether it is so.
    pub status: Status,
    /// Why, in one word for machines.
    pub reason: Masked,
    /// Why, in one sentence for people.
    pub message: Diagnostic,
    /// Since when the status is this, in milliseconds since the epoch.
    pub last_transition_ms: i64,
}
