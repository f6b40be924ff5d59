//! `creel run`: take a workflow from nothing to a known outcome.

mod check;
mod detach;
mod drive;
mod live;
mod plan;
pub(crate) mod resume;
pub(crate) mod retry;

use std::path::PathBuf;

use clap::Args;
use creel_core::ledger::OnOwnerDeath;
use creel_core::workflow::Source;

use crate::app::App;
use crate::output::{Exit, Failure};

use drive::Errand;

/// Run a workflow in a sandbox, to a known outcome
///
/// A sandbox is made, its workspace is prepared and verified step by step, and
/// only when every step has passed does the agent start. However the run ends,
/// the cause is named, everything it took is given back, and the absence of it
/// is proven. The exit code says how it ended: 0 succeeded, 5 failed,
/// 6 cancelled, 3 when something is not verified gone. Ctrl-C, SIGTERM and
/// SIGHUP cancel the run (6); a second one ends this command at once (130) and
/// leaves the rest to the watchdog, or to creel reconcile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel run examples/hello.toml                    watch the checklist, the agent, the outcome
  creel run --check workflow.toml                  is it right, and what would it do
  creel run --input issue=42 workflow.toml         give a value for ${input:issue}
  creel run --detach workflow.toml                 in the background; prints the run
  creel run --json workflow.toml                   one line of JSON at the end
  creel show last                                  what became of it")]
pub(crate) struct Run {
    /// The workflow file
    #[arg(value_name = "WORKFLOW")]
    path: PathBuf,
    /// Only check the file, and print what it would do
    #[arg(long, conflicts_with = "detach")]
    check: bool,
    /// A value for ${input:NAME} in the workflow
    #[arg(long = "input", value_name = "NAME=VALUE", value_parser = parse_input)]
    inputs: Vec<(String, String)>,
    /// Go on in the background, and print the run's id
    ///
    /// The sandbox outlives a killed supervisor until its lease ends; creel
    /// resume takes it up again.
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
        let errand = Errand::new(Source::read(&self.path)?, &self.inputs)?;
        if self.detach {
            return detach::start(app, &self.path, &self.inputs);
        }
        let on_owner_death = match self.in_background {
            true => OnOwnerDeath::Hold,
            false => OnOwnerDeath::Release,
        };
        drive::new_run(app, errand, on_owner_death, self.in_background).await
    }
}

fn parse_input(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}
