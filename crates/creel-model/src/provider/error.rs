//! Errors of providers, classified once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ProviderName, UnknownName};

/// Whose fault an error is, and whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The object does not exist.
    Gone,
    /// The same object is being changed right now; wait and check again.
    InProgress,
    /// Another object uses this one, and has to go first.
    InUse,
    /// Too many requests; retry later.
    Throttled,
    /// A retry may succeed.
    Transient,
    /// The credentials do not permit this.
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

    /// Returns whether a retry can help at all.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::InProgress | Self::Throttled | Self::Transient | Self::Unreachable => true,
            Self::Gone | Self::InUse | Self::Denied | Self::Quota | Self::Invalid => false,
        }
    }

    /// Returns whether a release that failed with this class may succeed in a later round by
    /// itself.
    ///
    /// A provider that is down, busy or throttled says nothing about the resource, and a resource
    /// in use becomes free when its user goes. A resource that is still changing after its whole
    /// deadline is stuck, although a single request of that class may be retried.
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
    /// The provider that failed.
    pub provider: ProviderName,
    /// The attempted operation, as a verb phrase: `remove container web-1`.
    pub operation: String,
    /// What the provider said, in one line.
    pub message: String,
    /// The class, which decides about a retry.
    pub class: ErrorClass,
    /// How long the provider asked us to wait, if it did.
    pub retry_after: Option<Duration>,
}
