//! The printer: every line of output passes through it.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use clap::{ArgAction, Args};
use creel_model::names;
use creel_sanitise as sanitise;
use serde::Serialize;

/// Flags that every command has.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Print one line of JSON to stdout instead of a table
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log more: -v progress, -vv reasons, -vvv requests and responses
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print only warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

/// Prints data to stdout and messages to stderr.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    quiet: bool,
    /// The first write error on stdout, such as a full disk.
    lost: Arc<OnceLock<io::Error>>,
}

impl Printer {
    pub(crate) fn new(global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet, lost: Arc::default() }
    }

    /// Prints a line of data.
    pub(crate) fn data(&self, line: &str) {
        let line = steady(line);
        self.note_lost(writeln!(anstream::stdout().lock(), "{line}"));
    }

    /// Prints one line of JSON, streamed.
    pub(crate) fn json(&self, value: &impl Serialize) {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = serde_json::to_writer(&mut out, value).map_err(io::Error::from);
        self.note_lost(written.and_then(|()| writeln!(out)).and_then(|()| out.flush()));
    }

    /// Remembers that data could not be written. A closed pipe is not an error.
    fn note_lost(&self, written: io::Result<()>) {
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let _ = self.lost.set(error);
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Returns the error because of which printed data is incomplete, if any.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get()
    }

    /// Prints a message for the user, unless quiet.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            let line = masked(line);
            super::progress::above_the_bar(|| {
                ignore_unshown(writeln!(anstream::stderr().lock(), "{line}"));
            });
        }
    }

    /// Prints a warning or an error, even if quiet.
    pub(crate) fn warn(&self, line: &str) {
        let line = masked(line);
        super::progress::above_the_bar(|| {
            ignore_unshown(writeln!(anstream::stderr().lock(), "{line}"));
        });
    }

    /// Returns whether progress is shown.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }
}

/// Returns a line for a person, with the known secrets of this process masked.
fn masked(line: &str) -> String {
    steady(sanitise::process_masker().mask(line).as_str()).into_owned()
}

/// Returns a text that cannot control a terminal: line breaks, tabs and colours stay.
fn steady(text: &str) -> Cow<'_, str> {
    let is_loose = |one: char| names::is_invisible(one) && !matches!(one, '\n' | '\t');
    if !text.contains(is_loose) {
        return Cow::Borrowed(text);
    }
    let mut steady = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_loose) {
        steady.push_str(&rest[..at]);
        let length = match colour(&rest[at..]) {
            Some(length) => {
                steady.push_str(&rest[at..at + length]);
                length
            }
            None => {
                let length = rest[at..].chars().next().map_or(1, char::len_utf8);
                steady.push_str(&names::visible(&rest[at..at + length]));
                length
            }
        };
        rest = &rest[at + length..];
    }
    steady.push_str(rest);
    Cow::Owned(steady)
}

/// Returns the length of the colour sequence at the beginning of a text.
fn colour(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|one: char| !one.is_ascii_digit() && one != ';')?;
    body[end..].starts_with('m').then_some(end + 3)
}

/// Ignores an error on stderr, because there is nowhere to report it.
fn ignore_unshown(written: io::Result<()>) {
    let _ = written;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_reach_the_terminal() {
        let text = "\u{1b}[31mred\u{1b}[0m \u{1b}[2J\u{202e}\r\ttab\nline";
        let shown = "\u{1b}[31mred\u{1b}[0m \\u{1b}[2J\\u{202e}\\r\ttab\nline";
        assert_eq!(steady(text), shown);
    }
}
