//! `creel apply`: releases exactly what a saved plan lists.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use creel_core::plan::{Plan, ProviderIdentity};
use creel_core::reap::Reaper;
use creel_model::failure::Code;
use creel_model::provider::{ProviderName, Providers};

use crate::app::{App, Listing};
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
        let mut plan = Plan::read(&self.plan)?;
        let planned = plan.items.len();
        let names: Vec<ProviderName> =
            plan.identities.iter().map(|planned| planned.provider).collect();
        let providers = app.providers(&names)?;
        let listing = check_providers(&plan.identities, &providers).await?;
        let (items, untried): (Vec<_>, Vec<_>) = std::mem::take(&mut plan.items)
            .into_iter()
            .partition(|item| listing.is_reachable(item.seen.provider));
        plan.items = items;
        let options = self.release.options(app)?;
        let ledger = app.ledger().await?;
        let reaper = Reaper::new(providers.clone(), Some(ledger.clone()));
        let mut report = reaper.run(&plan, &options, &SweepBar::new(&app.printer)).await;
        for error in &listing.unreachable {
            let theirs = untried.iter().filter(|item| item.seen.provider == error.provider);
            report.add_untried(theirs, error);
        }
        Shown {
            report: &report,
            applied: true,
            planned,
            unreachable: listing.unreachable_json(),
            took: started.elapsed(),
        }
        .print(app);
        release_orphans(app, &ledger, &providers).await;
        match listing.failure() {
            Some(failure) if !options.cancel.is_cancelled() => Err(failure),
            _ => verdict(&report, options.cancel.is_cancelled()),
        }
    }
}

/// Refuses a plan whose ids would name other objects here; returns the providers that do not
/// respond.
async fn check_providers(
    identities: &[ProviderIdentity],
    providers: &Providers,
) -> Result<Listing, Failure> {
    let mut listing = Listing::default();
    for planned in identities {
        let provider = providers.get(planned.provider)?;
        let identity = match provider.identity().await {
            Ok(identity) => identity,
            Err(error) => {
                listing.unreachable.push(error);
                continue;
            }
        };
        if identity != planned.identity {
            let message = format!(
                "the plan was made for {} at {}, which is another one than this",
                planned.provider, planned.address
            );
            return Err(Failure::new(Code::OtherEngine, Exit::Refused, message)
                .hint(provider.other_account_hint())
                .hint("or make a new plan"));
        }
    }
    Ok(listing)
}
