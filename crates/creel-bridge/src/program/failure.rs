//! Why the program gave up.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Why the program gave up, in one sentence and with an exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the order makes no sense.
    Usage(String),
    /// It cannot be done, or whoever wanted it is gone.
    Refused(String),
    /// The system did not do what it was asked.
    System {
        /// What was tried.
        tried: String,
        /// What the system said.
        error: io::Error,
    },
}

impl Failure {
    /// Returns what turns an error of the system into a failure, with what was tried.
    pub(crate) fn of<E: Into<io::Error>>(tried: impl Into<String>) -> impl FnOnce(E) -> Self {
        let tried = tried.into();
        move |error| Self::System { tried, error: error.into() }
    }

    /// Returns the exit code that says so.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Refused(_) | Self::System { .. } => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(reason) | Self::Refused(reason) => f.write_str(reason),
            Self::System { tried, error } => write!(f, "cannot {tried}: {error}"),
        }
    }
}
