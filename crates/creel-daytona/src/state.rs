//! The states of a sandbox: an open set of names, and how long each may last.

use std::fmt;
use std::time::Duration;

use creel_model::provider::{Kind, PresetRule};

/// The state of a sandbox, under Daytona's name; unknown names are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// It runs.
    Started,
    /// It is stopped; its disk remains.
    Stopped,
    /// It is being destroyed, but still exists.
    Destroying,
    /// The server reports it as gone.
    Destroyed,
    /// It failed.
    Error,
    /// Its image could not be built.
    BuildFailed,
    /// The server reports no state.
    Unknown,
    /// Any other name.
    Other(String),
}

impl SandboxState {
    /// Returns the name.
    pub fn name(&self) -> &str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Destroying => "destroying",
            Self::Destroyed => "destroyed",
            Self::Error => "error",
            Self::BuildFailed => "build_failed",
            Self::Unknown => "unknown",
            Self::Other(name) => name,
        }
    }

    /// Returns whether it failed.
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Error | Self::BuildFailed)
    }
}

impl From<String> for SandboxState {
    fn from(name: String) -> Self {
        let known = [
            Self::Started,
            Self::Stopped,
            Self::Destroying,
            Self::Destroyed,
            Self::Error,
            Self::BuildFailed,
            Self::Unknown,
        ];
        known.into_iter().find(|state| state.name() == name).unwrap_or(Self::Other(name))
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every known state of Daytona, and how long a transitional one may last.
///
/// `None` marks lasting states, and `destroying`, for which a release has its own deadline. Users
/// saw `creating` and `starting` frozen for hours and `pending_build` without limit. After these
/// times a create fails, and a release quarantines the sandbox by its id.
pub const STATES: [(&str, Option<Duration>); 22] = [
    ("creating", seconds(120)),
    ("restoring", seconds(300)),
    ("destroyed", None),
    ("destroying", None),
    ("started", None),
    ("stopped", None),
    ("starting", seconds(60)),
    ("stopping", seconds(60)),
    ("error", None),
    ("build_failed", None),
    ("pending_build", seconds(600)),
    ("building_snapshot", seconds(600)),
    ("unknown", seconds(60)),
    ("pulling_snapshot", seconds(300)),
    ("archived", None),
    ("archiving", seconds(300)),
    ("resizing", seconds(120)),
    ("snapshotting", seconds(300)),
    ("forking", seconds(120)),
    ("pausing", seconds(60)),
    ("paused", None),
    ("resuming", seconds(60)),
];

/// What the presets of a sweep select among sandboxes.
pub(super) const PRESET_RULES: &[PresetRule] = &[
    PresetRule {
        name: "stopped-sandbox",
        kind: Kind::Sandbox,
        states: &["stopped", "error", "build_failed"],
        presets: PresetRule::ALWAYS,
    },
    PresetRule {
        name: "archived-sandbox",
        kind: Kind::Sandbox,
        states: &["archived"],
        presets: PresetRule::AFTER_A_DAY,
    },
    PresetRule {
        name: "old-sandbox",
        kind: Kind::Sandbox,
        states: &[],
        presets: PresetRule::AGGRESSIVE,
    },
];

const fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

/// How long a state that is not in the table may last.
const UNHEARD_OF: Duration = Duration::from_secs(60);

/// Returns how long a transitional state may last before it counts as stuck; `None` if it may last.
pub(super) fn patience(state: &str) -> Option<Duration> {
    match STATES.iter().find(|(name, _)| *name == state) {
        Some((_, patience)) => *patience,
        None => Some(UNHEARD_OF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_name_round_trips() {
        for (name, _) in STATES {
            assert_eq!(SandboxState::from(name.to_owned()).name(), name);
        }
        assert_eq!(SandboxState::from("new".to_owned()).name(), "new");
    }

    #[test]
    fn what_passes_has_a_limit_and_what_lasts_has_none() {
        for state in ["creating", "starting", "stopping", "pending_build", "never-heard"] {
            assert!(patience(state).is_some(), "{state}");
        }
        for state in ["started", "stopped", "error", "archived", "paused"] {
            assert_eq!(patience(state), None, "{state}");
        }
    }
}
