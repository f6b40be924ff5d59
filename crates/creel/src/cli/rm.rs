//! `creel rm`: releases named resources.

use std::time::Instant;

use clap::Args;
use creel_core::pipeline::{Listing, Pipeline, PlannedRelease, Survey};
use creel_model::provider::ProviderName;

use crate::app::{App, unreachable_json};
use crate::backends::{parse_name, provider_help};
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};

use super::finder::Finder;
use super::orphans::release_orphans;
use super::release_args::ReleaseArgs;
use super::report::{Shown, verdict};

/// Release resources by name or id, running or not
///
/// Give a name, an id or a prefix of it, KIND/NAME, or a resource id of the
/// ledger. If one of them is unknown, ambiguous, protected or held by a live
/// owner, nothing is released.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel rm web-1
  creel rm 3f2a9c network/web_default
  creel rm res_0198c0ffee00700080000000000000aa     a resource id from `creel ledger`
  creel rm web-1 --stop-timeout 10s")]
pub(crate) struct Rm {
    /// The resources to release
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[arg(long, value_name = "NAME", value_parser = parse_name, help = provider_help())]
    provider: Vec<ProviderName>,
    /// Also release resources held by a live owner
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    release: ReleaseArgs,
}

impl Rm {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let started = Instant::now();
        let options = self.release.options(app)?;
        let providers = app.providers(&self.provider)?;
        let ledger = app.ledger().await?;
        let listing = Listing::read(&providers, &[]).await;
        let survey = Survey::new(listing, Some(&ledger)).await?;
        let finder = Finder {
            app,
            ledger: Some(&ledger),
            survey: &survey,
            providers: &providers,
            force: self.force,
        };
        let items = finder.find_all(&self.ids).await?;
        let planned = PlannedRelease::of_items(items, survey.listing.inventory.len());
        let cancel = options.cancel.clone();
        let pipeline = Pipeline::new(providers.clone(), Some(ledger.clone())).with_options(options);
        let report = pipeline.release(planned.uncapped(), &SweepBar::new(&app.printer)).await;
        Shown {
            report: &report,
            applied: true,
            planned: planned.item_count(),
            unreachable: unreachable_json(&survey.listing.unreachable),
            took: started.elapsed(),
        }
        .print(app);
        release_orphans(app, &ledger, &providers).await;
        verdict(&report, cancel.is_cancelled())
    }
}
