//! Phases: the stages of a run.

use serde::{Deserialize, Serialize};

use crate::provider::UnknownName;

/// The phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for a driver.
    Queued,
    /// The sandbox is being created.
    Provisioning,
    /// The checklist is running.
    Bootstrapping,
    /// Everything is in place, and the bridge and the agent may start.
    Ready,
    /// The agent works.
    Running,
    /// A turn failed and is retried.
    Retrying,
    /// The agent waits for a user.
    AwaitingInput,
    /// A rule of the workflow holds the run until a user resumes it.
    Paused,
    /// All its resources are being released.
    Releasing,
    /// The run did what it should.
    Succeeded,
    /// The run failed, and the cause is recorded.
    Failed,
    /// A user cancelled the run.
    Cancelled,
}

impl Phase {
    /// All phases, in their usual sequence.
    pub const ALL: [Self; 12] = [
        Self::Queued,
        Self::Provisioning,
        Self::Bootstrapping,
        Self::Ready,
        Self::Running,
        Self::Retrying,
        Self::AwaitingInput,
        Self::Paused,
        Self::Releasing,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns the name of the phase.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Provisioning => "provisioning",
            Self::Bootstrapping => "bootstrapping",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::AwaitingInput => "awaiting_input",
            Self::Paused => "paused",
            Self::Releasing => "releasing",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns whether only another attempt can follow.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Returns whether the agent is running or waiting.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Retrying | Self::AwaitingInput | Self::Paused)
    }

    /// Returns whether another phase may follow this one within an attempt.
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Queued, Self::Provisioning | Self::Bootstrapping)
            | (Self::Provisioning, Self::Bootstrapping)
            | (Self::Bootstrapping, Self::Ready)
            | (Self::Ready, Self::Running)
            | (Self::Releasing, Self::Succeeded | Self::Failed | Self::Cancelled) => true,
            // A driver that resumes a run determines the state of the agent again.
            (from, to) if from.is_active() && to.is_active() => true,
            (from, Self::Releasing) => !from.is_final() && !matches!(from, Self::Releasing),
            _ => false,
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Phase {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        UnknownName::pick(text, "phase", &Self::ALL, Self::name)
    }
}

/// Whether the sandbox can be reached.
///
/// This is independent of the phase and says nothing about the cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// There is nothing to connect to yet, or nothing any more.
    #[default]
    None,
    /// Events arrive.
    Connected,
    /// The stream broke and is being re-established.
    Reconnecting,
    /// No sign of life for three heartbeats.
    Offline,
}

impl Connection {
    /// Returns the name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Connected => "connected",
            Self::Reconnecting => "reconnecting",
            Self::Offline => "offline",
        }
    }
}
