//! The printer: where every line to a person or a machine goes through.

use std::io::{self, BufWriter, IsTerminal, Write};

use clap::{ArgAction, Args};
use serde::Serialize;

/// Flags that every command has.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Print one line of JSON to stdout instead of a table
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say more: -v the story, -vv the reasons, -vvv the wire
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Say only what went wrong
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

/// Prints data to stdout and talk to stderr.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    quiet: bool,
}

impl Printer {
    pub(crate) fn new(global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet }
    }

    /// Prints a line of data.
    pub(crate) fn data(&self, line: &str) {
        ignore_closed_pipe(writeln!(anstream::stdout().lock(), "{line}"));
    }

    /// Prints one line of JSON, streamed.
    pub(crate) fn json(&self, value: &impl Serialize) {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = serde_json::to_writer(&mut out, value).map_err(io::Error::from);
        ignore_closed_pipe(written.and_then(|()| writeln!(out)).and_then(|()| out.flush()));
    }

    /// Says something to the person at the terminal.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            super::progress::above_the_bar(|| {
                ignore_closed_pipe(writeln!(anstream::stderr().lock(), "{line}"));
            });
        }
    }

    /// Says what went wrong, also to those who want to hear nothing else.
    pub(crate) fn warn(&self, line: &str) {
        super::progress::above_the_bar(|| {
            ignore_closed_pipe(writeln!(anstream::stderr().lock(), "{line}"));
        });
    }

    /// Returns whether somebody watches the progress.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }
}

/// A reader that went away is no error of ours, and there is nobody to tell of others.
fn ignore_closed_pipe(written: io::Result<()>) {
    let _ = written;
}
