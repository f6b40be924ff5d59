//! `creel run`: runs a workflow to a known outcome.

mod check;
mod detach;
mod drive;
mod live;
mod plan;
pub(crate) mod resume;
pub(crate) mod retry;

use std::path::PathBuf;

use clap::Args;
use creel_ledger::OnOwnerDeath;
use creel_run::workflow::Source;
use drive::RunRequest;

use crate::app::App;
use crate::output::{Exit, Failure};

/// Run a workflow in a sandbox
///
/// Creates a sandbox, then prepares and verifies its workspace step by step. The
/// agent starts only after every step has passed. However the run ends, creel
/// reports the cause, releases all resources of the run, and verifies that they
/// are gone. Exit codes: 0 succeeded, 5 failed, 6 cancelled, 3 something is not
/// verified gone. Ctrl-C, SIGTERM and SIGHUP cancel the run (6). A second signal
/// exits immediately (130) and leaves the cleanup to the watchdog or to creel
/// reconcile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel run examples/hello.toml                    run and watch a workflow
  creel run --check workflow.toml                  validate it, and show what it would do
  creel run --input issue=42 workflow.toml         set ${input:issue}
  creel run --detach workflow.toml                 run in the background, print the run id
  creel run --json workflow.toml                   print one line of JSON at the end
  creel show last                                  show the result")]
pub(crate) struct Run {
    /// The workflow file
    #[arg(value_name = "WORKFLOW")]
    path: PathBuf,
    /// Only validate the file, and print what it would do
    #[arg(long, conflicts_with = "detach")]
    check: bool,
    /// Set the value of ${input:NAME} in the workflow
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = parse_input)]
    inputs: Vec<(String, String)>,
    /// Run in the background, and print the run id
    ///
    /// If the driver is killed, the sandbox lives until its lease expires; creel
    /// resume continues the run.
    #[arg(long)]
    detach: bool,
    /// Drive in the background on behalf of --detach
    #[arg(long, hide = true)]
    in_background: bool,
}

impl Run {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        check::refuse_secrets(&self.inputs)?;
        if self.check {
            return check::check(app, &self.path, &self.inputs);
        }
        let request = RunRequest::new(Source::read(&self.path)?, &self.inputs)?;
        if self.detach {
            return detach::start(app, &self.path, &self.inputs);
        }
        let on_owner_death = match self.in_background {
            true => OnOwnerDeath::Hold,
            false => OnOwnerDeath::Release,
        };
        drive::new_run(app, request, on_owner_death, self.in_background).await
    }
}

fn parse_input(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}
