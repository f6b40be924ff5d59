//! The terminal in front of a command: who has the foreground.
//!
//! Only a process that has the foreground may give it away: any other one is
//! stopped for trying. So the guard hands it to the command's group before the
//! command starts, and the attendant, who is in that group, hands it back.

use std::io;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// Puts a process group in the foreground, if this process's group has it.
pub(super) fn hand_over(group: Pid) {
    let stdin = io::stdin();
    let is_ours = isatty(&stdin) && tcgetpgrp(&stdin).is_ok_and(|front| front == getpgrp());
    if is_ours {
        // Without it the command reads nothing, which it will say itself.
        let _ = tcsetpgrp(&stdin, group);
    }
}
