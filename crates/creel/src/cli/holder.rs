//! The hidden `holder`: the root of a process tree, a re-exec of this program.
//!
//! It runs before anything else starts, because a process with threads cannot create its own pid
//! namespace.

use std::ffi::OsString;
use std::process::ExitCode;

use creel_process as process;
use creel_process::{Attendance, holder};

use crate::app::HOLDER_COMMAND;

/// Returns whether this process was started as a holder.
pub(crate) fn is_requested(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.nth(1).is_some_and(|arg| arg == HOLDER_COMMAND)
}

/// Runs until the tree has ended.
pub(crate) fn run() -> ExitCode {
    // The caller has the error already, and a holder's stderr is not read.
    let ended = match Attendance::of_arguments(std::env::args_os().skip(2)) {
        Some(attendance) => process::attend(&attendance),
        None => holder::run(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
