//! The program's commands, one module each.
//!
//! All code here blocks and starts no thread. Each command is one loop around `poll`, so it notices
//! limits, signals and hang-ups whatever else happens, and its memory stays bounded.

mod acknowledge;
mod arguments;
mod ask;
mod directory;
mod error;
mod exec;
mod file;
mod first_line;
mod hold;
mod lease;
mod poll;
mod processes;
mod serve;
mod signals;
mod spawn;
mod spool;
mod tail;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::Arguments;
use error::BridgeError;

/// Runs the command that the first argument names.
pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode, BridgeError> {
    let command = args.next().unwrap_or_default();
    let args = args.collect::<Vec<_>>();
    match command.to_str() {
        Some("exec") => exec::run(&Arguments::read(
            args,
            &["order", "after", "while-file", "while-ms"],
            &["while-connected"],
        )?),
        Some("hold") => {
            hold::run(&Arguments::read(args, &["lease-file", "lease-ms", "socket"], &[])?)
        }
        Some("serve") => serve::run(&Arguments::read(args, &[], &[])?),
        Some(processes::BRIDGE_ARG) => serve::run_detached(&Arguments::read(args, &[], &[])?),
        Some("tail") => tail::run(&Arguments::read(args, &["directory", "from"], &["follow"])?),
        Some("acknowledge") => acknowledge::run(&Arguments::read(args, &["directory", "to"], &[])?),
        Some("poke") => acknowledge::poke(&Arguments::read(args, &["directory"], &[])?),
        Some("ask") => ask::run(&args),
        Some("put") => file::put(&Arguments::read(args, &["mode", "path"], &[])?),
        Some("get") => file::get(&Arguments::read(args, &["most", "path"], &[])?),
        Some("alive") => Ok(ExitCode::SUCCESS),
        _ => Err(BridgeError::Usage(format!(
            "no such command: {:?}; there are exec, hold, serve, tail, acknowledge, poke, ask, put, \
             get and alive",
            command.to_string_lossy(),
        ))),
    }
}
