//! `creel apply`: releases exactly what a saved plan lists.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use creel_core::pipeline::{Pipeline, PlannedRelease};
use creel_core::plan::Plan;
use creel_model::provider::ProviderName;

use crate::app::{App, unlisted, unreachable_json};
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};

use super::orphans::release_orphans;
use super::release_args::ReleaseArgs;
use super::report::{Shown, verdict};

/// Release exactly what a saved plan lists
///
/// A plan is valid only for the providers it was made for. Resources that have
/// changed since then are skipped and reported (exit code 4).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel sweep --label bench --plan-out plan.json
  creel apply plan.json
  creel apply plan.json --json | jq .gone")]
pub(crate) struct Apply {
    /// The plan file, written by `creel sweep --plan-out`
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    release: ReleaseArgs,
}

impl Apply {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let started = Instant::now();
        let plan = Plan::read(&self.plan)?;
        let names: Vec<ProviderName> =
            plan.identities.iter().map(|planned| planned.provider).collect();
        let providers = app.providers(&names)?;
        let planned = PlannedRelease::of_saved(plan, &providers).await?;
        let options = self.release.options(app)?;
        let ledger = app.ledger().await?;
        let cancel = options.cancel.clone();
        let pipeline = Pipeline::new(providers.clone(), Some(ledger.clone())).with_options(options);
        let report = pipeline.release(planned.uncapped(), &SweepBar::new(&app.printer)).await;
        Shown {
            report: &report,
            applied: true,
            planned: planned.item_count(),
            unreachable: unreachable_json(&planned.unreachable),
            took: started.elapsed(),
        }
        .print(app);
        release_orphans(app, &ledger, &providers).await;
        match unlisted(&planned.unreachable) {
            Some(failure) if !cancel.is_cancelled() => Err(failure),
            _ => verdict(&report, cancel.is_cancelled()),
        }
    }
}
