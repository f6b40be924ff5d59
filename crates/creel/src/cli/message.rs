//! `creel message`: sends a message to the agent of a run.

use std::io::Read;

use clap::Args;
use creel_model::task;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::run_request::place_message;

/// Maximum length of a message in bytes.
const LONGEST: u64 = 1 << 20;

/// Send a message to the agent of a run, or answer its question
///
/// The agent receives the message at the end of its turn, or immediately if it
/// waits for an answer. Until then the text is stored in a private file; it
/// appears in no log.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel message last yes
  creel message last 'use the staging database instead'
  creel message last --request q1 no
  creel message last - < notes.txt")]
pub(crate) struct Message {
    /// The run: an id, a prefix of an id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// The message; `-` reads it from standard input
    #[arg(value_name = "TEXT|-", allow_hyphen_values = true)]
    text: String,
    /// Answer this question, as shown by `creel events` (default: the open question)
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

impl Message {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let text = if self.text == "-" { read_input().await? } else { self.text };
        if text.trim().is_empty() {
            return Err(Failure::usage("the message is empty").hint("creel message RUN TEXT"));
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
