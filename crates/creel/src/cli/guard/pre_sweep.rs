//! Releases what earlier runs left before the command starts, so that it finds room.
//!
//! A resource that cannot be released is reported and left. Only a provider that cannot be reached
//! keeps the command from starting, because then the guard could not do its own work either.

use std::time::{Duration, Instant};

use clap::Args;
use creel_core::pipeline::{Listing, Pipeline, Selection, Survey};
use creel_core::reap::{ReapOptions, Report};
use creel_core::recipe::RecipeEntry;
use creel_core::select::Selector;
use creel_ledger::Ledger;
use creel_model::failure::Code;
use creel_model::provider::Preset;
use creel_model::provider::Providers;
use tokio_util::sync::CancellationToken;

use crate::app::{App, refusal};
use crate::cli::recipes;
use crate::cli::report::Shown;
use crate::cli::selector_args::SelectorArgs;
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};
use crate::shutdown::Shutdown;

/// The heading of these flags in the help.
const BEFORE: &str = "Before the command";

/// Cleanup before the command starts
#[derive(Debug, Args)]
pub(super) struct PreSweepArgs {
    /// Release leftovers first, like `creel sweep --preset default --apply`
    #[arg(long, help_heading = BEFORE)]
    pre_sweep: bool,
    /// Only release resources at least this old: 12h, 1d
    #[arg(long, value_name = "AGE", requires = "pre_sweep", value_parser = creel_model::duration::parse, help_heading = BEFORE)]
    older_than: Option<Duration>,
    /// Release what this recipe proves finished instead: harbor, testcontainers …
    #[arg(long, value_name = "NAME", requires = "pre_sweep", help_heading = BEFORE)]
    recipe: Option<String>,
    /// Assert that the recipe's harness has ended; skip the age and process checks
    #[arg(long, requires = "recipe", help_heading = BEFORE)]
    ended: bool,
    /// Only release resources of this Compose project
    #[arg(long, value_name = "NAME", requires = "pre_sweep", help_heading = BEFORE)]
    project: Vec<String>,
}

/// The context of a sweep.
pub(super) struct SweepContext<'a> {
    pub(super) app: &'a App,
    pub(super) ledger: &'a Ledger,
    pub(super) providers: &'a Providers,
}

impl PreSweepArgs {
    /// Releases the selected resources, and reports the outcome on stderr.
    pub(super) async fn sweep(
        &self,
        context: SweepContext<'_>,
        shutdown: &mut Shutdown,
    ) -> Result<(), Failure> {
        if !self.pre_sweep {
            return Ok(());
        }
        let app = context.app;
        let recipe = self.recipe.as_ref().map(|name| recipes::load(app, name)).transpose()?;
        let cancel = CancellationToken::new();
        let sweep = self.run_sweep(&context, recipe.as_ref(), &cancel);
        tokio::pin!(sweep);
        let swept = tokio::select! {
            swept = &mut sweep => swept,
            () = shutdown.requested() => {
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

    async fn run_sweep(
        &self,
        context: &SweepContext<'_>,
        recipe: Option<&RecipeEntry>,
        cancel: &CancellationToken,
    ) -> Result<(), Failure> {
        let (started, app) = (Instant::now(), context.app);
        let providers = context.providers;
        let listing = Listing::read(providers, &[]).await;
        if let Some(failure) = refusal(&listing.unreachable) {
            return Err(failure.hint("creel guard needs every provider that is configured here"));
        }
        let mut survey = Survey::new(listing, Some(context.ledger)).await?;
        let findings = match recipe {
            Some(recipe) => {
                let vouched = self.ended.then_some(self.project.as_slice());
                Some(recipes::judge(app, recipe, &mut survey, providers, vouched).await?)
            }
            None => None,
        };
        app.printer.say(&format!("before the command, as: {}", self.as_sweep()));
        let selectors = self.selectors()?;
        let options = ReapOptions { cancel: cancel.clone(), ..app.reap_options() };
        let pipeline =
            Pipeline::new(providers.clone(), Some(context.ledger.clone())).with_options(options);
        let selection =
            Selection { selectors: &selectors, findings: findings.as_ref(), force: false };
        let planned = pipeline.plan(&mut survey, selection).await?;
        let checked = match planned.check(&app.caps(None, None)) {
            Ok(checked) => checked,
            Err(refusal) => {
                app.printer
                    .warn(&format!("warning: nothing was released before the command: {refusal}"));
                return Ok(());
            }
        };
        let report = pipeline.release(checked, &SweepBar::new(&app.printer)).await;
        let (unreachable, took) = (Vec::new(), started.elapsed());
        Shown { report: &report, applied: true, planned: planned.item_count(), unreachable, took }
            .say(app);
        verdict(app, &report)
    }

    /// Returns the selection: a preset or a recipe, narrowed by the other flags.
    fn selectors(&self) -> Result<Vec<Selector>, Failure> {
        let flags = SelectorArgs::of_age_and_project(self.older_than, &self.project);
        match self.recipe {
            Some(_) => Ok(vec![flags.selector()?]),
            None => flags.narrow(Preset::Default),
        }
    }

    /// Returns the equivalent sweep command. Without `--apply` it shows what would go.
    fn as_sweep(&self) -> String {
        let mut line = match &self.recipe {
            Some(recipe) => format!("creel sweep --recipe {recipe}"),
            None => format!("creel sweep --preset {}", Preset::Default),
        };
        if self.ended {
            line.push_str(" --ended");
        }
        if let Some(age) = self.older_than {
            line.push_str(&format!(" --older-than {}", creel_model::duration::show(age)));
        }
        for project in &self.project {
            line.push_str(&format!(" --project {project}"));
        }
        line + " --apply"
    }
}

/// Fails only if a provider stopped responding.
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

    fn given(older_than: Option<u64>, recipe: Option<&str>) -> PreSweepArgs {
        let older_than = older_than.map(Duration::from_secs);
        let recipe = recipe.map(str::to_owned);
        PreSweepArgs { pre_sweep: true, older_than, recipe, ended: false, project: Vec::new() }
    }

    #[test]
    fn an_age_only_makes_the_sweep_stricter() {
        let ages = |older_than: Option<u64>| {
            let selectors = given(older_than, None).selectors().unwrap();
            let ages = selectors.into_iter().map(|rule| rule.older_than);
            ages.map(|age| age.map_or(0, |age| age.as_secs())).collect::<Vec<_>>()
        };
        // Stopped and never started or archived, for each provider.
        assert_eq!(ages(None), [0, 86_400, 0, 86_400]);
        assert_eq!(ages(Some(3_600)), [3_600, 86_400, 3_600, 86_400]);
        assert_eq!(ages(Some(172_800)), [172_800; 4]);
    }

    #[test]
    fn the_equivalent_sweep_command_is_printed() {
        assert_eq!(given(None, None).as_sweep(), "creel sweep --preset default --apply");
        let mut recipe = given(Some(86_400), Some("harbor"));
        recipe.ended = true;
        recipe.project.push("job".to_owned());
        let line = "creel sweep --recipe harbor --ended --older-than 24h --project job --apply";
        assert_eq!(recipe.as_sweep(), line);
    }
}
