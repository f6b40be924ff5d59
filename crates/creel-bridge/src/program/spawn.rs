//! Starts this program again, for work that needs its own process.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Returns a command that runs this very program, even if its file was removed.
pub(crate) fn this_program(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("creel-bridge").args(args);
    command
}
