//! What the program does, one module per command.
//!
//! Everything here blocks, and nothing here starts a thread: each command is
//! one loop around `poll`, so that limits, signals and hang-ups are seen
//! whatever else is going on, and memory stays bounded.

mod acknowledge;
mod arguments;
mod ask;
mod directory;
mod exec;
mod failure;
mod file;
mod first_line;
mod hold;
mod lease;
mod lookout;
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
use failure::Failure;

/// Does what the first word says.
pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> Result<ExitCode, Failure> {
    let command = words.next().unwrap_or_default();
    let words = words.collect::<Vec<_>>();
    match command.to_str() {
        Some("exec") => exec::run(&Arguments::read(
            words,
            &["order", "after", "while-file", "while-ms"],
            &["while-connected"],
        )?),
        Some("hold") => {
            hold::run(&Arguments::read(words, &["lease-file", "lease-ms", "socket"], &[])?)
        }
        Some("serve") => serve::run(&Arguments::read(words, &[], &[])?),
        Some(processes::BRIDGE_WORD) => serve::run_detached(&Arguments::read(words, &[], &[])?),
        Some("tail") => tail::run(&Arguments::read(words, &["directory", "from"], &["follow"])?),
        Some("acknowledge") => {
            acknowledge::run(&Arguments::read(words, &["directory", "to"], &[])?)
        }
        Some("poke") => acknowledge::poke(&Arguments::read(words, &["directory"], &[])?),
        Some("ask") => ask::run(&words),
        Some("put") => file::put(&Arguments::read(words, &["mode", "path"], &[])?),
        Some("get") => file::get(&Arguments::read(words, &["most", "path"], &[])?),
        Some("alive") => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::Usage(format!(
            "no such command: {:?}; there are exec, hold, serve, tail, acknowledge, poke, ask, put, \
             get and alive",
            command.to_string_lossy(),
        ))),
    }
}
