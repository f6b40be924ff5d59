//! Errors that end the program.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// An error that ends the program, with one sentence and an exit code.
#[derive(Debug)]
pub(crate) enum BridgeError {
    /// The command line or the request is invalid.
    Usage(String),
    /// It cannot be done, or the caller is gone.
    Refused(String),
    /// A system call failed.
    System {
        /// What the program tried to do.
        tried: String,
        /// The system's error.
        error: io::Error,
    },
}

impl BridgeError {
    /// Returns a function that turns a system error into a failure, with what was tried.
    pub(crate) fn of<E: Into<io::Error>>(tried: impl Into<String>) -> impl FnOnce(E) -> Self {
        let tried = tried.into();
        move |error| Self::System { tried, error: error.into() }
    }

    /// Returns the exit code of the failure.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Refused(_) | Self::System { .. } => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
        }
    }
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(reason) | Self::Refused(reason) => f.write_str(reason),
            Self::System { tried, error } => write!(f, "cannot {tried}: {error}"),
        }
    }
}
