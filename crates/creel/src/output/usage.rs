//! Invalid command lines, shown like every other failure.

use std::error::Error;

use clap::error::ErrorKind;

use super::Failure;

impl Failure {
    /// Creates a failure from a parser error; returns `None` if the parser only shows help.
    pub(crate) fn of_parser(error: &clap::Error) -> Option<Self> {
        let only_help = [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
        if !error.use_stderr() || only_help.contains(&error.kind()) {
            return None;
        }
        let text = error.render().to_string();
        let mut parts = text.split("\n\n").map(one_line);
        let message = parts.next().unwrap_or_default();
        let mut failure = Self::usage(message.strip_prefix("error: ").unwrap_or(&message));
        // The first source is part of the message already.
        if let Some(cause) = error.source().and_then(Error::source) {
            failure = failure.because(cause);
        }
        let mut hints: Vec<String> = parts.filter_map(|part| hint(&part)).collect();
        if hints.is_empty() {
            hints.push("--help shows what there is".to_owned());
        }
        Some(hints.into_iter().fold(failure, Self::hint))
    }
}

fn hint(part: &str) -> Option<String> {
    let usage = |usage| format!("the usage is: {usage}");
    let tip = part.strip_prefix("tip: ").map(str::to_owned);
    tip.or_else(|| part.strip_prefix("Usage: ").map(usage))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
