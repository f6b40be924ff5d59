//! Exit codes: part of the interface, documented in `docs/reference/exit-codes.md`.

use std::process::ExitCode;

/// The meaning of an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done and verified.
    Done,
    /// An internal error.
    Internal,
    /// Wrong usage or settings.
    Usage,
    /// Something is unverified or quarantined.
    Unverified,
    /// Refused: cap, protection, drift, limit.
    Refused,
    /// The run or job failed.
    Failed,
    /// The run was cancelled.
    Cancelled,
    /// A configured provider does not respond or denies access.
    Provider,
    /// Interrupted, after cleaning up.
    Interrupted,
    /// A guard itself failed, regardless of its command.
    Guard,
    /// The exit code of a guarded command.
    Command(u8),
}

impl Exit {
    /// Returns the number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Unverified => 3,
            Self::Refused => 4,
            Self::Failed => 5,
            Self::Cancelled => 6,
            Self::Provider => 7,
            Self::Interrupted => 130,
            Self::Guard => 125,
            Self::Command(code) => code,
        }
    }

    /// Returns the more important of two exit codes.
    pub(crate) fn and(self, other: Self) -> Self {
        const ORDER: [Exit; 9] = [
            Exit::Interrupted,
            Exit::Internal,
            Exit::Usage,
            Exit::Provider,
            Exit::Unverified,
            Exit::Refused,
            Exit::Failed,
            Exit::Cancelled,
            Exit::Done,
        ];
        ORDER.into_iter().find(|exit| *exit == self || *exit == other).unwrap_or(Self::Done)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_several_apply_the_documented_order_decides() {
        assert_eq!(Exit::Done.and(Exit::Refused), Exit::Refused);
        assert_eq!(Exit::Refused.and(Exit::Unverified), Exit::Unverified);
        assert_eq!(Exit::Unverified.and(Exit::Provider), Exit::Provider);
        assert_eq!(Exit::Provider.and(Exit::Internal), Exit::Internal);
    }
}
