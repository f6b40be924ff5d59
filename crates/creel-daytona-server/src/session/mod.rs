//! Shells in a sandbox that outlive the request that started them.
//!
//! A [`ShellSession`] runs commands one after the other. A [`Pty`] is an interactive shell on a
//! terminal. Both have a name in their sandbox, see [`PerSandbox`]. The toolbox serves them to
//! clients. They are kept in memory only: when the sandbox or the server ends, they end too.

mod per_sandbox;
mod pty;
mod shell;
mod splitter;

pub(crate) use per_sandbox::PerSandbox;
pub(crate) use pty::{KILLED, Pty, PtyRequest, checked_size, exit_code};
pub(crate) use shell::{ShellCommand, ShellSession};
