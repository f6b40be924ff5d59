//! `creel rm`: releases named resources.

use std::time::Instant;

use clap::Args;
use creel_core::plan::{Plan, VERSION};
use creel_core::reap::Reaper;
use creel_model::provider::ProviderName;
use jiff::Timestamp;

use crate::app::App;
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
    /// Only search this provider: daytona, docker, process
    #[arg(long, value_name = "NAME")]
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
        let listing = app.list(&providers, &[]).await;
        let record_index = App::record_index(Some(&ledger), &listing.inventory).await?;
        let (ledger_ref, force) = (Some(&ledger), self.force);
        let finder = Finder {
            app,
            ledger: ledger_ref,
            listing: &listing,
            record_index: &record_index,
            providers: &providers,
            force,
        };
        let items = finder.find_all(&self.ids).await?;
        let plan = Plan {
            version: VERSION,
            made_at: Timestamp::now(),
            identities: Vec::new(),
            listed: listing.inventory.len(),
            items,
            spared: Vec::new(),
        };
        let reaper = Reaper::new(providers.clone(), Some(ledger.clone()));
        let report = reaper.run(&plan, &options, &SweepBar::new(&app.printer)).await;
        Shown {
            report: &report,
            applied: true,
            planned: plan.items.len(),
            unreachable: listing.unreachable_json(),
            took: started.elapsed(),
        }
        .print(app);
        release_orphans(app, &ledger, &providers).await;
        verdict(&report, options.cancel.is_cancelled())
    }
}
