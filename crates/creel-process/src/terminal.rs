//! The foreground process group of the terminal.
//!
//! Only a process in the foreground may hand it over: any other one is stopped for trying. The
//! guard therefore hands it to the command's group before the command starts. The attendant, which
//! is in that group, hands it back.

use std::io;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// Puts a process group in the foreground, if this process's group has it.
pub(super) fn hand_over(group: Pid) {
    let stdin = io::stdin();
    let is_ours = isatty(&stdin) && tcgetpgrp(&stdin).is_ok_and(|front| front == getpgrp());
    if is_ours {
        // Without the foreground the command cannot read, and reports that itself.
        let _ = tcsetpgrp(&stdin, group);
    }
}
