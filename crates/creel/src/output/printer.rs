//! The printer: where every line to a person or a machine goes through.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use clap::{ArgAction, Args};
use creel_core::{names, sanitise};
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
    /// Why data is missing in what was printed, as on a full disk.
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

    /// Remembers that data could not be written. A reader that went away wants no more.
    fn note_lost(&self, written: io::Result<()>) {
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let _ = self.lost.set(error);
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Returns why data is missing in what was printed, if some is.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get()
    }

    /// Says something to the person at the terminal.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            let line = told(line);
            super::progress::above_the_bar(|| {
                ignore_unshown(writeln!(anstream::stderr().lock(), "{line}"));
            });
        }
    }

    /// Says what went wrong, also to those who want to hear nothing else.
    pub(crate) fn warn(&self, line: &str) {
        let line = told(line);
        super::progress::above_the_bar(|| {
            ignore_unshown(writeln!(anstream::stderr().lock(), "{line}"));
        });
    }

    /// Returns whether somebody watches the progress.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }
}

/// Returns a line for a person: what this process knows to be secret is masked in it.
fn told(line: &str) -> String {
    steady(sanitise::process_masker().mask(line).as_str()).into_owned()
}

/// Returns a text that cannot steer a terminal: lines, tabs and our own colours stay.
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

/// Returns how long the colour is that a text begins with.
fn colour(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|one: char| !one.is_ascii_digit() && one != ';')?;
    body[end..].starts_with('m').then_some(end + 3)
}

/// A message that cannot be shown cannot be complained about either.
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
