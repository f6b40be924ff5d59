//! Before the command: what earlier runs left is released, so that it finds room.
//!
//! Whatever will not go is said and left; only a provider that cannot be asked keeps the command
//! from starting, because then the guard could not do its own work either.

use std::time::{Duration, Instant};

use clap::Args;
use creel_core::failure::Code;
use creel_core::ledger::Ledger;
use creel_core::plan::{self, Plan, PlanInput};
use creel_core::provider::Providers;
use creel_core::reap::{ReapOptions, Reaper, Report};
use creel_core::recipe::{Entry, Findings};
use creel_core::select::{Preset, Selector};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Listing};
use crate::cli::recipes;
use crate::cli::report::Shown;
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};
use crate::shutdown::Shutdown;

/// The heading of these flags in the help.
const BEFORE: &str = "Before the command";

/// What is released before the command starts
#[derive(Debug, Args)]
pub(super) struct PreSweepArgs {
    /// Release what earlier runs left, as `creel sweep --preset default --apply` does
    #[arg(long, help_heading = BEFORE)]
    pre_sweep: bool,
    /// Of that, only what was made at least this long ago: 12h, 1d
    #[arg(long, value_name = "AGE", requires = "pre_sweep", value_parser = creel_core::duration::parse, help_heading = BEFORE)]
    older_than: Option<Duration>,
    /// Instead of that, what a recipe proves finished: harbor, testcontainers …
    #[arg(long, value_name = "NAME", requires = "pre_sweep", help_heading = BEFORE)]
    recipe: Option<String>,
}

/// What a sweep is carried out with.
pub(super) struct Means<'a> {
    pub(super) app: &'a App,
    pub(super) ledger: &'a Ledger,
    pub(super) providers: &'a Providers,
}

impl PreSweepArgs {
    /// Releases what is meant, and says what came of it on stderr.
    pub(super) async fn sweep(
        &self,
        means: Means<'_>,
        shutdown: &mut Shutdown,
    ) -> Result<(), Failure> {
        if !self.pre_sweep {
            return Ok(());
        }
        let app = means.app;
        let recipe = self.recipe.as_ref().map(|name| recipes::take(app, name)).transpose()?;
        let cancel = CancellationToken::new();
        let sweep = self.carry_out(&means, recipe.as_ref(), &cancel);
        tokio::pin!(sweep);
        let swept = tokio::select! {
            swept = &mut sweep => swept,
            () = shutdown.asked() => {
                app.printer.say("interrupted: finishing what is under way");
                cancel.cancel();
                sweep.await
            }
        };
        if cancel.is_cancelled() {
            let message = "interrupted before the command was started";
            return Err(Failure::new(Code::Interrupted, Exit::Guard, message));
        }
        swept
    }

    async fn carry_out(
        &self,
        means: &Means<'_>,
        recipe: Option<&Entry>,
        cancel: &CancellationToken,
    ) -> Result<(), Failure> {
        let (started, app) = (Instant::now(), means.app);
        let mut listing = app.list(means.providers, &[]).await;
        if let Some(failure) = listing.refusal() {
            return Err(failure.hint("creel guard needs every provider that is configured here"));
        }
        let findings = match recipe {
            Some(recipe) => Some(recipes::judge(recipe, &mut listing, means.providers).await?),
            None => None,
        };
        let selectors = self.selectors();
        let plan = means.plan(&listing, &selectors, findings.as_ref()).await?;
        if let Err(refusal) = app.caps(None, None).check(&plan) {
            app.printer
                .warn(&format!("warning: nothing was released before the command: {refusal}"));
            return Ok(());
        }
        let options = ReapOptions {
            selectors,
            seen_at: Some(started),
            cancel: cancel.clone(),
            ..app.reap_options()
        };
        let reaper = Reaper::new(means.providers.clone(), Some(means.ledger.clone()));
        let report = reaper.run(&plan, &options, &SweepBar::new(&app.printer)).await;
        let planned = plan.items.len();
        let (unreachable, took) = (Vec::new(), started.elapsed());
        Shown { report: &report, applied: true, planned, unreachable, took }.say(app);
        verdict(app, &report)
    }

    /// Returns what is meant: a recipe has its own rules, which only an age can narrow.
    fn selectors(&self) -> Vec<Selector> {
        if self.recipe.is_some() {
            return vec![Selector { older_than: self.older_than, ..Selector::default() }];
        }
        let narrowed = Preset::Default
            .selectors()
            .into_iter()
            .map(|rule| Selector { older_than: rule.older_than.max(self.older_than), ..rule });
        narrowed.collect()
    }
}

impl Means<'_> {
    async fn plan(
        &self,
        listing: &Listing,
        selectors: &[Selector],
        findings: Option<&Findings>,
    ) -> Result<Plan, Failure> {
        let roll = App::roll(Some(self.ledger)).await?;
        Ok(plan::build(PlanInput {
            worlds: Vec::new(),
            inventory: &listing.inventory,
            roll: &roll,
            selectors,
            findings,
            protect: &self.app.config.protect,
            force: false,
            now: Timestamp::now(),
        }))
    }
}

/// Only a provider that stopped answering is a reason not to start.
fn verdict(app: &App, report: &Report) -> Result<(), Failure> {
    if report.lost_a_provider() {
        let message = "a provider stopped answering before the command was started";
        return Err(Failure::new(Code::Unreachable, Exit::Guard, message)
            .hint("creel doctor shows whether it answers again"));
    }
    if !report.is_all_gone() {
        app.printer.warn("warning: not everything was released; each line says why");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_only_makes_the_sweep_stricter() {
        let ages = |older_than: Option<u64>| {
            let older_than = older_than.map(Duration::from_secs);
            let given = PreSweepArgs { pre_sweep: true, older_than, recipe: None };
            let ages = given.selectors().into_iter().map(|rule| rule.older_than);
            ages.map(|age| age.map_or(0, |age| age.as_secs())).collect::<Vec<_>>()
        };
        assert_eq!(ages(None), [0, 0, 86_400, 86_400]);
        assert_eq!(ages(Some(3_600)), [3_600, 3_600, 86_400, 86_400]);
        assert_eq!(ages(Some(172_800)), [172_800; 4]);
    }
}
