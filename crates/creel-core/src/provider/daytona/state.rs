//! The states of a sandbox: an open set of words, and how long each may last.

use std::fmt;
use std::time::Duration;

/// What a sandbox is doing, in Daytona's word; a word that is not known is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// It runs.
    Started,
    /// It is stopped; its disk remains.
    Stopped,
    /// It is on its way out; not gone.
    Destroying,
    /// It is said to be gone.
    Destroyed,
    /// It failed.
    Error,
    /// Its image could not be built.
    BuildFailed,
    /// Nothing was told.
    Unknown,
    /// Any other word.
    Other(String),
}

impl SandboxState {
    /// Returns the word.
    pub fn name(&self) -> &str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Destroying => "destroying",
            Self::Destroyed => "destroyed",
            Self::Error => "error",
            Self::BuildFailed => "build_failed",
            Self::Unknown => "unknown",
            Self::Other(word) => word,
        }
    }

    /// Returns whether it ended badly.
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Error | Self::BuildFailed)
    }
}

impl From<String> for SandboxState {
    fn from(word: String) -> Self {
        let known = [
            Self::Started,
            Self::Stopped,
            Self::Destroying,
            Self::Destroyed,
            Self::Error,
            Self::BuildFailed,
            Self::Unknown,
        ];
        known.into_iter().find(|state| state.name() == word).unwrap_or(Self::Other(word))
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every state Daytona is known to show, and how long one that should pass may last.
///
/// `None` marks states that last, and `destroying`, for which a release has its own deadline.
/// Users saw `creating` and `starting` frozen for hours and `pending_build` without limit: after
/// these times a create fails, and a release quarantines the sandbox by its id.
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

const fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

/// How long a state that is not in the table may last.
const UNHEARD_OF: Duration = Duration::from_secs(60);

/// Returns how long a state may last before something is wrong, if it is one that passes.
pub(super) fn patience(state: &str) -> Option<Duration> {
    match STATES.iter().find(|(word, _)| *word == state) {
        Some((_, patience)) => *patience,
        None => Some(UNHEARD_OF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_survives_reading() {
        for (word, _) in STATES {
            assert_eq!(SandboxState::from(word.to_owned()).name(), word);
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
