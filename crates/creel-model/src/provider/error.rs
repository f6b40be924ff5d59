//! Errors of providers, classified once.

use std::time::Duration;

use crate::failure::Code;

use super::ProviderName;

crate::named_enum! {
    /// Whose fault an error is, and whether a retry can help.
    pub enum ErrorClass: "error class" {
        /// The object does not exist.
        Gone = "gone",
        /// The same object is being changed right now; wait and check again.
        InProgress = "in_progress",
        /// Another object uses this one, and has to go first.
        InUse = "in_use",
        /// Too many requests; retry later.
        Throttled = "throttled",
        /// A retry may succeed.
        Transient = "transient",
        /// The credentials do not permit this.
        Denied = "denied",
        /// A limit of the account or of the machine is reached.
        Quota = "quota",
        /// The request itself is wrong.
        Invalid = "invalid",
        /// The provider did not answer at all.
        Unreachable = "unreachable",
    }
}

impl ErrorClass {
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

impl ProviderError {
    /// Returns the code of the page that explains it.
    pub fn code(&self) -> Code {
        match self.class {
            ErrorClass::Denied => Code::Denied,
            ErrorClass::Unreachable | ErrorClass::Throttled | ErrorClass::Transient => {
                Code::Unreachable
            }
            _ => Code::Refused,
        }
    }
}
