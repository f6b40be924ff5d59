//! Phases: where a run is, in one word.

use serde::{Deserialize, Serialize};

use crate::provider::UnknownName;

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for somebody to drive it.
    Queued,
    /// Its sandbox is being made.
    Provisioning,
    /// Its checklist is being worked through.
    Bootstrapping,
    /// All is there; bridge and agent may start.
    Ready,
    /// The agent works.
    Running,
    /// A turn failed, and is tried again.
    Retrying,
    /// The agent waits for a person.
    AwaitingInput,
    /// A rule of the workflow holds it until somebody resumes it.
    Paused,
    /// All it took is being given back.
    Releasing,
    /// It did what it should.
    Succeeded,
    /// It did not, and the cause is named.
    Failed,
    /// Somebody ended it.
    Cancelled,
}

impl Phase {
    /// All phases, in the order of a life.
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

    /// Returns the word for it.
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

    /// Returns whether nothing follows but another attempt.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Returns whether the agent is under way, working or waiting.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Retrying | Self::AwaitingInput | Self::Paused)
    }

    /// Returns whether one phase may follow another within an attempt.
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Queued, Self::Provisioning | Self::Bootstrapping)
            | (Self::Provisioning, Self::Bootstrapping)
            | (Self::Bootstrapping, Self::Ready)
            | (Self::Ready, Self::Running)
            | (Self::Releasing, Self::Succeeded | Self::Failed | Self::Cancelled) => true,
            // A driver that came back finds out again how the agent is.
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

/// Whether the sandbox can be reached: an axis of its own, which says nothing about the cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// There is nothing to be connected to yet, or not any more.
    #[default]
    None,
    /// Events come in.
    Connected,
    /// The stream broke, and is being made again.
    Reconnecting,
    /// No sign of life for three heartbeats.
    Offline,
}

impl Connection {
    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Connected => "connected",
            Self::Reconnecting => "reconnecting",
            Self::Offline => "offline",
        }
    }
}
