//! Starting this program again, for work that needs a process of its own.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Returns a command that is this very program, even where its file was removed.
pub(crate) fn this_program(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("creel-bridge").args(words);
    command
}
