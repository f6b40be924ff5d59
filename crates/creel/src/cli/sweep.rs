//! `creel sweep`: releases what the selectors match.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use creel_core::pipeline::{
    CertificateRequest, CheckedRelease, Listing, Pipeline, PlannedRelease, Selection, Survey,
};
use creel_core::reap::Report;
use creel_core::select::{Ownership, Selector};
use creel_ledger::{Ledger, LedgerError};
use creel_model::failure::Code;
use creel_model::owner::Liveness;
use creel_model::provider::{Observed, Preset};
use creel_model::task;
use futures::join;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::app::{App, unlisted, unreachable_json};
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};

use super::orphans::release_orphans;
use super::recipes;
use super::release_args::ReleaseArgs;
use super::report::{Shown, verdict};
use super::selector_args::SelectorArgs;
use super::unfinished;

/// Release the selected resources; a dry run without --apply
///
/// Without selectors, selects resources of creel whose owner is dead. Those that
/// were kept on request stay until their time is over, unless --owned is given.
/// To select foreign resources, give a narrowing selector (--label, --name,
/// --project, --state, --older-than, --idle-for), a --preset, a --recipe, or
/// --all. Resources that are protected, in use by others, or held by a live owner
/// are skipped and reported.
#[derive(Debug, Args)]
#[command(after_help = "\
Presets:
  stopped      containers that are exited or dead; sandboxes that are stopped, in error or
               whose build failed
  default      stopped; and, when a day old: containers never started, archived sandboxes
  aggressive   stopped, never started and archived at any age; and, when a day old:
               containers and sandboxes in every state, unused networks, unused anonymous
               volumes, dangling images

Recipes: compose, harbor, inspect, openhands, swe-bench, terminal-bench, testcontainers, and
your own; creel recipes lists them. The other selectors make a recipe stricter.

Examples:
  creel sweep --preset stopped                          dry run
  creel sweep --preset stopped --apply                  release
  creel sweep --label terminal-bench --apply            all with a label, even if running
  creel sweep --kind container --older-than 24h --apply
  creel sweep --provider daytona --idle-for 1d --apply
  creel sweep --recipe harbor                           proven leftovers of harbor
  creel sweep --recipe harbor --ended --apply           if you know that harbor has ended
  creel sweep --recipe compose --ended --project job    leftovers of a killed `docker compose up`
  creel sweep --recipe testcontainers --older-than 2d --apply
  creel sweep --project my-job --plan-out plan.json     save the plan, apply it later
  creel sweep --label bench --apply --certificate c.json --max 200")]
pub(crate) struct Sweep {
    #[command(flatten)]
    selectors: SelectorArgs,
    /// Use a named set of selectors: stopped, default, aggressive
    #[arg(long, value_name = "NAME", help_heading = "Selectors")]
    preset: Option<Preset>,
    /// Select the proven leftovers of a harness: harbor, compose, testcontainers …
    #[arg(long, value_name = "NAME", help_heading = "Selectors", conflicts_with = "preset")]
    recipe: Option<String>,
    /// Assert that the harness has ended; skip the recipe's age and process checks
    ///
    /// Resources that are protected, held by a live guard, or in use by others are
    /// still skipped. The recipe compose also requires --project.
    #[arg(long, help_heading = "Selectors", requires = "recipe")]
    ended: bool,
    /// Select everything that matches, also foreign resources; asks for confirmation
    #[arg(long, help_heading = "Selectors", conflicts_with_all = ["preset", "recipe"])]
    all: bool,
    /// Release the resources instead of only showing the plan
    #[arg(long)]
    apply: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// Also release resources held by a live owner
    #[arg(long)]
    force: bool,
    /// Save the plan to a file, for `creel apply`
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    plan_out: Option<PathBuf>,
    /// Write a leak certificate: baseline, actions, final inventory, difference
    #[arg(long, value_name = "FILE", requires = "apply")]
    certificate: Option<PathBuf>,
    /// Refuse to release more than this many resources
    #[arg(long, value_name = "N")]
    max: Option<usize>,
    /// Refuse to release more than this percentage of all listed resources
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    max_percent: Option<u8>,
    #[command(flatten)]
    release: ReleaseArgs,
}

impl Sweep {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let started = Instant::now();
        let selectors = self.selection()?;
        let recipe = self.recipe.as_ref().map(|name| recipes::load(app, name)).transpose()?;
        let options = self.release.options(app)?;
        let cancel = options.cancel.clone();
        let providers = app.providers(&self.selectors.provider)?;
        // All kinds are listed, whatever is selected: containers show what is in use.
        let (ledger, listing) = join!(self.ledger(app), Listing::read(&providers, &[]));
        let (ledger, unwritable) = ledger?;
        let mut survey = match unwritable {
            Some(_) => Survey::sparing_tracked(listing, app.record_index_of_labels()),
            None => Survey::new(listing, ledger.as_ref()).await?,
        };
        let findings = match &recipe {
            Some(recipe) => {
                let vouched = self.ended.then_some(self.selectors.project.as_slice());
                Some(recipes::judge(app, recipe, &mut survey, &providers, vouched).await?)
            }
            None => None,
        };
        let pipeline = Pipeline::new(providers.clone(), ledger.clone()).with_options(options);
        let selection =
            Selection { selectors: &selectors, findings: findings.as_ref(), force: self.force };
        let planned = pipeline.plan(&mut survey, selection).await?;
        let left = unwritable.and_then(|error| orphans_left(error, &survey));
        if let Some(path) = &self.plan_out {
            pipeline.bind(&planned.plan).await?.write(path)?;
            app.printer.say(&format!("plan saved; apply it with: creel apply {}", path.display()));
        }
        let report = if self.apply {
            let checked = self.check(app, &planned, &cancel).await?;
            pipeline.release(checked, &SweepBar::new(&app.printer)).await
        } else {
            Report::of_plan(&planned.plan)
        };
        let (planned_count, made_at) = (planned.item_count(), planned.plan.made_at);
        // A long table needs memory: drop what is no longer needed first.
        drop(planned);
        let mut listing = survey.listing;
        if self.certificate.is_none() {
            listing.inventory = Vec::new();
        }
        Shown {
            report: &report,
            applied: self.apply,
            planned: planned_count,
            unreachable: unreachable_json(&listing.unreachable),
            took: started.elapsed(),
        }
        .print(app);
        let mut unread = None;
        if self.apply {
            unread = self.certify(app, &pipeline, (made_at, &listing), &report).await?;
            if let Some(ledger) = ledger.as_ref().filter(|_| !cancel.is_cancelled()) {
                release_orphans(app, ledger, &providers).await;
            }
        }
        unfinished::mention(app, &unfinished::read(app, ledger.as_ref()).await);
        if let Some(failure) = unlisted(&listing.unreachable).or(unread) {
            return Err(failure);
        }
        let done =
            if self.apply { verdict(&report, cancel.is_cancelled()) } else { Ok(Exit::Done) };
        match (done, left) {
            (Ok(_), Some(left)) => Err(left),
            (Err(failure), Some(left)) => Err(failure.and(&left)),
            (done, None) => done,
        }
    }

    /// Returns the selectors; refuses what would select foreign resources by accident.
    fn selection(&self) -> Result<Vec<Selector>, Failure> {
        if let Some(preset) = self.preset {
            return self.selectors.narrow(preset);
        }
        let mut selector = self.selectors.selector()?;
        if self.recipe.is_some() {
            return Ok(vec![selector]);
        }
        let bare = selector.describe().is_empty();
        if self.all {
            selector.all = true;
        } else if bare {
            selector.owned = true;
            selector.spares_kept = true;
        } else if !selector.is_narrowing() {
            return Err(Failure::new(
                Code::NotNarrow,
                Exit::Refused,
                "these selectors would mean every resource of that kind, also foreign ones",
            )
            .hint("narrow it with --label, --name, --project, --state or --older-than")
            .hint("--owned means only what creel made; --all means everything"));
        }
        selector.rule = selector.describe();
        Ok(vec![selector])
    }

    /// Opens the ledger.
    ///
    /// Foreign resources can be released even if the ledger cannot be written: a user with a full
    /// disk must be able to clean up. Then the error is returned with it.
    async fn ledger(&self, app: &App) -> Result<(Option<Ledger>, Option<LedgerError>), Failure> {
        if !self.apply {
            return Ok((app.ledger_if_any().await, None));
        }
        match Ledger::open(&app.environment.home).await {
            Ok(ledger) => Ok((Some(ledger), None)),
            Err(error) if error.allows_untracked_release() => {
                app.printer.warn(&format!(
                    "warning: {error}; what creel tracks is spared, the rest is released without audit"
                ));
                Ok((None, Some(error)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses plans that are too large or not confirmed.
    async fn check<'a>(
        &self,
        app: &App,
        planned: &'a PlannedRelease,
        cancel: &CancellationToken,
    ) -> Result<CheckedRelease<'a>, Failure> {
        let checked = planned.check(&app.caps(self.max, self.max_percent))?;
        let count = planned.item_count();
        if self.all && !self.yes && count > 0 {
            confirm(app, count, cancel).await?;
        }
        Ok(checked)
    }

    /// Writes the certificate; returns why it lacks the list after the release, if it does.
    async fn certify(
        &self,
        app: &App,
        pipeline: &Pipeline,
        (started_at, before): (Timestamp, &Listing),
        report: &Report,
    ) -> Result<Option<Failure>, Failure> {
        let Some(path) = &self.certificate else { return Ok(None) };
        let after = &pipeline.list().await;
        let request = CertificateRequest::of_plan(started_at, (before, after), report);
        let certificate = pipeline.certify(request).await;
        certificate.write(path).map_err(|error| {
            let message = format!("cannot write the certificate {}", path.display());
            Failure::file(&message, &error).after_output()
        })?;
        let unread = unlisted(&after.unreachable);
        let reservation = if unread.is_some() { " (inventory unread)" } else { "" };
        app.printer.say(&format!("certificate: {}{reservation}", path.display()));
        Ok(unread)
    }
}

/// Returns a failure if orphans were left because the ledger cannot be written.
fn orphans_left(error: LedgerError, survey: &Survey) -> Option<Failure> {
    let is_orphan = |seen: &&Observed| {
        matches!(
            survey.record_index.ownership(seen),
            Ownership::Unrecorded { liveness: Liveness::Dead, .. }
                | Ownership::Ours { liveness: Liveness::Dead, .. }
        )
    };
    let count = survey.listing.inventory.iter().filter(is_orphan).count();
    (count > 0).then(|| {
        let failure = Failure::from(error).exiting(Exit::Unverified);
        let after = format!("orphans that creel made and did not release: {count}");
        failure
            .hint(format!("{after}; creel reconcile, once the ledger can be written"))
            .after_output()
    })
}

async fn confirm(app: &App, count: usize, cancel: &CancellationToken) -> Result<(), Failure> {
    let unconfirmed = |message: &str| Failure::new(Code::Unconfirmed, Exit::Refused, message);
    if !std::io::stdin().is_terminal() {
        return Err(unconfirmed("--all means everything, and there is no terminal to confirm it")
            .hint("review the plan without --apply, then add --yes"));
    }
    app.printer.warn(&format!("To be released, also what creel did not make: {count}"));
    let mut stderr = std::io::stderr();
    // If the prompt cannot be shown, the next line of input still answers it.
    let _ = write!(stderr, "Type yes to go on: ").and_then(|()| stderr.flush());
    // A signal must cancel the prompt while it waits for an answer.
    let answer = tokio::select! {
        answer = task::blocking(|| std::io::stdin().lines().next()) => answer,
        () = cancel.cancelled() => None,
    };
    match answer {
        Some(Ok(answer)) if answer.trim() == "yes" => Ok(()),
        _ => Err(unconfirmed("not confirmed; nothing was released")),
    }
}
