//! The states of a sandbox and the orders that move it.
//!
//! One total function, [`State::obey`], says what each order does in each
//! state; [`State::settled`] says where a state in transition ends. Live
//! requests and timers go through the same two functions.

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

/// Where a sandbox is meant to end up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Desired {
    Destroyed,
    Started,
    Stopped,
    Archived,
    Paused,
}

/// What somebody wants done with a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Start,
    Stop,
    Archive,
    Pause,
    Recover,
    Destroy,
    /// The end of a time to live, which looks at no state.
    Expire,
}

/// Why an order is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Something else is under way.
    InProgress,
    /// It makes no sense in this state.
    NotNow(&'static str),
    /// There is nothing to order.
    Absent,
    /// It is so already; the answer is the sandbox as it is.
    AlreadySo,
}

impl State {
    /// Returns whether something is under way.
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

    /// Returns the state an order leads to at once, or why it is refused.
    pub(crate) fn obey(self, order: Order) -> Result<Self, Refusal> {
        match (order, self) {
            (_, Self::Destroyed) => Err(Refusal::Absent),
            // A sandbox that is being archived may be deleted; nothing else in transition may.
            (Order::Destroy | Order::Expire, Self::Archiving) => Ok(Self::Destroying),
            (_, state) if state.is_in_transition() => Err(Refusal::InProgress),
            // Nothing is sent to the runner: the row stays as it is until it is purged.
            (Order::Destroy, Self::Error | Self::BuildFailed) => Ok(self),
            (Order::Destroy | Order::Expire, _) => Ok(Self::Destroying),
            (Order::Start, Self::Started) => Err(Refusal::AlreadySo),
            (Order::Start, Self::Stopped) => Ok(Self::Starting),
            (Order::Start, Self::Archived) => Ok(Self::Restoring),
            (Order::Start, Self::Paused) => Ok(Self::Resuming),
            (Order::Start, _) => Err(Refusal::NotNow("Sandbox is not in valid state")),
            (Order::Stop, Self::Started | Self::Paused) => Ok(Self::Stopping),
            (Order::Stop, _) => Err(Refusal::NotNow("Sandbox is not in a stoppable state")),
            (Order::Archive, Self::Stopped) => Ok(Self::Archiving),
            (Order::Archive, _) => Err(Refusal::NotNow("Sandbox is not stopped")),
            (Order::Pause, Self::Started) => Ok(Self::Pausing),
            (Order::Pause, _) => Err(Refusal::NotNow("Sandbox is not started")),
            (Order::Recover, Self::Error) => Ok(Self::Starting),
            (Order::Recover, _) => {
                Err(Refusal::NotNow("Sandbox must be in error state to recover"))
            }
        }
    }

    /// Returns where a state in transition ends when nothing goes wrong.
    pub(crate) fn settled(self) -> Self {
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

    /// Returns what a sandbox in this state is meant to become.
    pub(crate) fn desired(self) -> Desired {
        match self.settled() {
            Self::Stopped => Desired::Stopped,
            Self::Archived => Desired::Archived,
            Self::Paused => Desired::Paused,
            Self::Destroyed => Desired::Destroyed,
            _ => Desired::Started,
        }
    }

    /// Reads a state by its name.
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
            assert_eq!(state.obey(Order::Destroy), Err(Refusal::InProgress), "{state:?}");
        }
        for state in [State::Started, State::Stopped, State::Archiving, State::Unknown] {
            assert_eq!(state.obey(Order::Destroy), Ok(State::Destroying), "{state:?}");
        }
        for state in [State::Error, State::BuildFailed] {
            assert_eq!(state.obey(Order::Destroy), Ok(state), "it stays");
            assert_eq!(state.obey(Order::Expire), Ok(State::Destroying), "{state:?}");
        }
        assert_eq!(State::Destroyed.obey(Order::Destroy), Err(Refusal::Absent));
    }

    #[test]
    fn stop_is_refused_when_stopped_or_errored() {
        for state in [State::Stopped, State::Error, State::Archived] {
            assert!(matches!(state.obey(Order::Stop), Err(Refusal::NotNow(_))), "{state:?}");
        }
    }

    #[test]
    fn states_are_named_as_the_api_names_them() {
        assert_eq!(State::parse("build_failed"), Some(State::BuildFailed));
        assert_eq!(State::parse("gone"), None);
    }
}
