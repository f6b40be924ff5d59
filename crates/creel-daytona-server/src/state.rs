//! The states of a sandbox and the actions that change them.
//!
//! One total function, [`State::apply`], defines the effect of each action in each state.
//! [`State::final_state`] defines the end of each state in transition. Requests and timers use the
//! same two functions.

use serde::{Deserialize, Serialize};

/// Every state the API knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are Daytona's own and explain themselves")]
pub enum State {
    Creating,
    Restoring,
    Destroyed,
    Destroying,
    Started,
    Stopped,
    Starting,
    Stopping,
    Error,
    BuildFailed,
    PendingBuild,
    BuildingSnapshot,
    Unknown,
    PullingSnapshot,
    Archived,
    Archiving,
    Resizing,
    Snapshotting,
    Forking,
    Pausing,
    Paused,
    Resuming,
}

/// The desired state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Desired {
    Destroyed,
    Started,
    Stopped,
    Archived,
    Paused,
}

/// A requested change of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Start,
    Stop,
    Archive,
    Pause,
    Recover,
    Destroy,
    /// The end of a time to live, which ignores the state.
    Expire,
}

/// Why an action is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActionRefusal {
    /// Another transition is in progress.
    InProgress,
    /// The action is not possible in this state.
    NotNow(&'static str),
    /// The sandbox does not exist.
    Absent,
    /// The sandbox is already in that state. The response is the sandbox as it is.
    AlreadySo,
}

impl State {
    /// Returns whether a transition is in progress.
    pub(crate) fn is_in_transition(self) -> bool {
        match self {
            Self::Creating
            | Self::Restoring
            | Self::Destroying
            | Self::Starting
            | Self::Stopping
            | Self::PendingBuild
            | Self::BuildingSnapshot
            | Self::PullingSnapshot
            | Self::Archiving
            | Self::Resizing
            | Self::Snapshotting
            | Self::Forking
            | Self::Pausing
            | Self::Resuming => true,
            Self::Destroyed
            | Self::Started
            | Self::Stopped
            | Self::Error
            | Self::BuildFailed
            | Self::Unknown
            | Self::Archived
            | Self::Paused => false,
        }
    }

    /// Returns the state that an action leads to at once, or why it is refused.
    pub(crate) fn apply(self, action: Action) -> Result<Self, ActionRefusal> {
        match (action, self) {
            (_, Self::Destroyed) => Err(ActionRefusal::Absent),
            // A sandbox that is being archived may be deleted; nothing else in transition may.
            (Action::Destroy | Action::Expire, Self::Archiving) => Ok(Self::Destroying),
            (_, state) if state.is_in_transition() => Err(ActionRefusal::InProgress),
            // Nothing is sent to the runner. The row stays until it is purged.
            (Action::Destroy, Self::Error | Self::BuildFailed) => Ok(self),
            (Action::Destroy | Action::Expire, _) => Ok(Self::Destroying),
            (Action::Start, Self::Started) => Err(ActionRefusal::AlreadySo),
            (Action::Start, Self::Stopped) => Ok(Self::Starting),
            (Action::Start, Self::Archived) => Ok(Self::Restoring),
            (Action::Start, Self::Paused) => Ok(Self::Resuming),
            (Action::Start, _) => Err(ActionRefusal::NotNow("Sandbox is not in valid state")),
            (Action::Stop, Self::Started | Self::Paused) => Ok(Self::Stopping),
            (Action::Stop, _) => Err(ActionRefusal::NotNow("Sandbox is not in a stoppable state")),
            (Action::Archive, Self::Stopped) => Ok(Self::Archiving),
            (Action::Archive, _) => Err(ActionRefusal::NotNow("Sandbox is not stopped")),
            (Action::Pause, Self::Started) => Ok(Self::Pausing),
            (Action::Pause, _) => Err(ActionRefusal::NotNow("Sandbox is not started")),
            (Action::Recover, Self::Error) => Ok(Self::Starting),
            (Action::Recover, _) => {
                Err(ActionRefusal::NotNow("Sandbox must be in error state to recover"))
            }
        }
    }

    /// Returns the end of a state in transition when nothing goes wrong.
    pub(crate) fn final_state(self) -> Self {
        match self {
            Self::Creating
            | Self::Restoring
            | Self::Starting
            | Self::Resuming
            | Self::PendingBuild
            | Self::BuildingSnapshot
            | Self::PullingSnapshot
            | Self::Resizing
            | Self::Snapshotting
            | Self::Forking => Self::Started,
            Self::Stopping => Self::Stopped,
            Self::Archiving => Self::Archived,
            Self::Pausing => Self::Paused,
            Self::Destroying => Self::Destroyed,
            other => other,
        }
    }

    /// Returns the desired state of a sandbox in this state.
    pub(crate) fn desired(self) -> Desired {
        match self.final_state() {
            Self::Stopped => Desired::Stopped,
            Self::Archived => Desired::Archived,
            Self::Paused => Desired::Paused,
            Self::Destroyed => Desired::Destroyed,
            _ => Desired::Started,
        }
    }

    /// Parses the name of a state.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delete_is_a_conflict_in_transition_and_fine_while_archiving() {
        for state in [State::Creating, State::Starting, State::Stopping, State::Destroying] {
            assert_eq!(state.apply(Action::Destroy), Err(ActionRefusal::InProgress), "{state:?}");
        }
        for state in [State::Started, State::Stopped, State::Archiving, State::Unknown] {
            assert_eq!(state.apply(Action::Destroy), Ok(State::Destroying), "{state:?}");
        }
        for state in [State::Error, State::BuildFailed] {
            assert_eq!(state.apply(Action::Destroy), Ok(state), "it stays");
            assert_eq!(state.apply(Action::Expire), Ok(State::Destroying), "{state:?}");
        }
        assert_eq!(State::Destroyed.apply(Action::Destroy), Err(ActionRefusal::Absent));
    }

    #[test]
    fn stop_is_refused_when_stopped_or_errored() {
        for state in [State::Stopped, State::Error, State::Archived] {
            assert!(
                matches!(state.apply(Action::Stop), Err(ActionRefusal::NotNow(_))),
                "{state:?}"
            );
        }
    }

    #[test]
    fn states_are_named_as_the_api_names_them() {
        assert_eq!(State::parse("build_failed"), Some(State::BuildFailed));
        assert_eq!(State::parse("gone"), None);
    }
}
