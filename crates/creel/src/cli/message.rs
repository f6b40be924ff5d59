//! `creel message`: tell the agent of a run something.

use std::io::Read;

use clap::Args;
use creel_core::task;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::order::place_message;

/// The longest message, in bytes.
const LONGEST: u64 = 1 << 20;

/// Tell the agent of a run something, or answer what it asked
///
/// The text waits in a private file and is shown in no log; the file goes when
/// the agent has it, or with the run. It reaches the agent at the end of its turn, or at once where the agent waits for an answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel message last yes
  creel message last 'use the staging database instead'
  creel message last --request q1 no
  creel message last - < notes.txt")]
pub(crate) struct Message {
    /// The run: its id, the beginning of it, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// What to say; `-` reads it from standard input
    #[arg(value_name = "TEXT|-", allow_hyphen_values = true)]
    text: String,
    /// The question this answers, as `creel events` shows it; the one that waits, by default
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

impl Message {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let text = if self.text == "-" { read_input().await? } else { self.text };
        if text.trim().is_empty() {
            return Err(Failure::usage("there is nothing to say").hint("creel message RUN TEXT"));
        }
        place_message(app, &self.run, &text, self.request.as_deref()).await
    }
}

async fn read_input() -> Result<String, Failure> {
    let read = task::blocking(|| {
        let mut text = String::new();
        std::io::stdin().take(LONGEST + 1).read_to_string(&mut text).map(|_| text)
    });
    let text = read.await.map_err(|error| Failure::file("cannot read standard input", &error))?;
    if text.len() as u64 > LONGEST {
        return Err(Failure::usage("a message has at most 1 MiB"));
    }
    Ok(text)
}
