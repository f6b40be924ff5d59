//! What a provider can say no with, classified once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ProviderName, UnknownName};

/// Whose fault it is, and whether another try can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The object does not exist.
    Gone,
    /// The same object is being changed right now; wait and look again.
    InProgress,
    /// Something else uses the object; it cannot go before that.
    InUse,
    /// Too many requests; come back later.
    Throttled,
    /// It may work the next time.
    Transient,
    /// We may not do this.
    Denied,
    /// A limit of the account or of the machine is reached.
    Quota,
    /// The request itself is wrong.
    Invalid,
    /// The provider did not answer at all.
    Unreachable,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 9] = [
        Self::Gone,
        Self::InProgress,
        Self::InUse,
        Self::Throttled,
        Self::Transient,
        Self::Denied,
        Self::Quota,
        Self::Invalid,
        Self::Unreachable,
    ];

    /// Returns the name used in configuration, flags and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::InProgress => "in_progress",
            Self::InUse => "in_use",
            Self::Throttled => "throttled",
            Self::Transient => "transient",
            Self::Denied => "denied",
            Self::Quota => "quota",
            Self::Invalid => "invalid",
            Self::Unreachable => "unreachable",
        }
    }

    /// Returns whether another try can help at all.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::InProgress | Self::Throttled | Self::Transient | Self::Unreachable => true,
            Self::Gone | Self::InUse | Self::Denied | Self::Quota | Self::Invalid => false,
        }
    }

    /// Returns whether a release that failed so may work in a later round, without anybody's
    /// doing.
    ///
    /// A provider that is down, busy or throttled says nothing about the resource; what is in
    /// use goes with its user. A resource that is still changing after all the time it was
    /// given is stuck, though a single try of that class may be repeated.
    pub const fn may_pass(self) -> bool {
        match self {
            Self::InUse | Self::Throttled | Self::Transient | Self::Unreachable => true,
            Self::Gone | Self::InProgress | Self::Denied | Self::Quota | Self::Invalid => false,
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ErrorClass {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        UnknownName::pick(text, "error class", &Self::ALL, Self::name)
    }
}

/// A provider call that did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{provider} could not {operation}: {message}")]
pub struct ProviderError {
    /// Which world.
    pub provider: ProviderName,
    /// What was tried, as a verb phrase: `remove container web-1`.
    pub operation: String,
    /// What the provider said, in one line.
    pub message: String,
    /// The class, which decides about another try.
    pub class: ErrorClass,
    /// How long the provider asked us to wait, if it did.
    pub retry_after: Option<Duration>,
}
