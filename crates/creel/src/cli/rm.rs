//! `creel rm`: release what is named.

use std::time::Instant;

use clap::Args;
use creel_core::plan::{Plan, VERSION};
use creel_core::provider::ProviderName;
use creel_core::reap::Reaper;
use jiff::Timestamp;

use crate::app::App;
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};

use super::named::Finder;
use super::release_args::ReleaseArgs;
use super::report::{Shown, verdict};
use super::settle::settle;

/// Release the named resources at once, running or not
///
/// A name is a whole name, an id or the start of one, KIND/NAME, or a resource
/// id of the ledger. All names are found before the first release; one that is
/// unknown, ambiguous, protected or held by a live owner stops the command.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel rm web-1
  creel rm 3f2a9c network/web_default
  creel rm res_0198c0ffee00700080000000000000aa     a record of `creel ledger`
  creel rm web-1 --stop-timeout 10s")]
pub(crate) struct Rm {
    /// What to release
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Only in this provider: daytona, docker, process
    #[arg(long, value_name = "NAME")]
    provider: Vec<ProviderName>,
    /// Release also what a live owner holds
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
        let roll = App::roll(Some(&ledger)).await?;
        let (ledger_ref, force) = (Some(&ledger), self.force);
        let finder = Finder {
            app,
            ledger: ledger_ref,
            listing: &listing,
            roll: &roll,
            providers: &providers,
            force,
        };
        let items = finder.find_all(&self.ids).await?;
        let plan = Plan {
            version: VERSION,
            made_at: Timestamp::now(),
            worlds: Vec::new(),
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
        settle(app, &ledger, &providers).await;
        verdict(&report, options.cancel.is_cancelled())
    }
}
