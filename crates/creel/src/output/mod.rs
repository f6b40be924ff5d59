//! Output for people and machines: stdout is data, stderr is messages.

mod exit;
mod failure;
pub(crate) mod log;
mod printer;
pub(crate) mod progress;
pub(crate) mod table;
mod usage;

use std::process::ExitCode;

pub(crate) use exit::Exit;
pub(crate) use failure::{Failure, incomplete_audit};
pub(crate) use printer::{Global, Printer};

/// Shows a failure and returns its exit code.
pub(crate) fn fail(printer: &Printer, failure: &Failure) -> ExitCode {
    failure.show(printer);
    failure.exit.into()
}
