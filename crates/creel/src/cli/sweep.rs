//! `creel sweep`: releases what the selectors match.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use creel_core::plan;
use creel_core::plan::{Plan, PlanInput};
use creel_core::reap::{Certificate, CertificateEvidence, Reaper, Report};
use creel_core::recipe::{Findings, RecipeEntry};
use creel_core::select::{Ownership, Preset, RecordIndex, Selector};
use creel_ledger::{Ledger, LedgerError};
use creel_model::failure::Code;
use creel_model::owner::Liveness;
use creel_model::provider::{Observed, Providers};
use creel_model::task;
use futures::join;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Listing};
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

/// What a sweep selects.
struct Selection<'a> {
    selectors: &'a [Selector],
    /// The findings of a recipe, if one narrows the selectors.
    findings: Option<&'a Findings>,
}

impl Sweep {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let started = Instant::now();
        let selectors = self.selection()?;
        let recipe = self.recipe.as_ref().map(|name| recipes::load(app, name)).transpose()?;
        let mut options = self.release.options(app)?;
        options.selectors.clone_from(&selectors);
        let providers = app.providers(&self.selectors.provider)?;
        options.seen_at = Some(Instant::now());
        // All kinds are listed, whatever is selected: containers show what is in use.
        let (ledger, mut listing) = join!(self.ledger(app), app.list(&providers, &[]));
        let (ledger, unwritable) = ledger?;
        let record_index = match unwritable {
            Some(_) => app.record_index_of_labels(),
            None => App::record_index(ledger.as_ref(), &listing.inventory).await?,
        };
        let findings = match &recipe {
            Some(recipe) => {
                Some(self.judge(app, recipe, &mut listing, &record_index, &providers).await?)
            }
            None => None,
        };
        listing.date_images(app, &selectors, &record_index, &providers).await?;
        let input = Selection { selectors: &selectors, findings: findings.as_ref() };
        let plan = self.plan(app, &listing, &record_index, input);
        let plan = if unwritable.is_some() { spare_tracked(plan, &record_index) } else { plan };
        let left = unwritable.and_then(|error| orphans_left(error, &listing, &record_index));
        if let Some(path) = &self.plan_out {
            keep(app, &providers, &plan, path).await?;
        }
        let report = if self.apply {
            self.check(app, &plan, &options.cancel).await?;
            let reaper = Reaper::new(providers.clone(), ledger.clone());
            reaper.run(&plan, &options, &SweepBar::new(&app.printer)).await
        } else {
            Report::of_plan(&plan)
        };
        let (planned, made_at) = (plan.items.len(), plan.made_at);
        // A long table needs memory: drop what is no longer needed first.
        drop(plan);
        if self.certificate.is_none() {
            listing.inventory = Vec::new();
        }
        Shown {
            report: &report,
            applied: self.apply,
            planned,
            unreachable: listing.unreachable_json(),
            took: started.elapsed(),
        }
        .print(app);
        let mut unread = None;
        if self.apply {
            let certified =
                self.certify(app, &providers, ledger.as_ref(), made_at, &listing, &report);
            unread = certified.await?;
            if let Some(ledger) = ledger.as_ref().filter(|_| !options.cancel.is_cancelled()) {
                release_orphans(app, ledger, &providers).await;
            }
        }
        unfinished::mention(app, &unfinished::read(app, ledger.as_ref()).await);
        if let Some(failure) = listing.failure().or(unread) {
            return Err(failure);
        }
        let done = if self.apply {
            verdict(&report, options.cancel.is_cancelled())
        } else {
            Ok(Exit::Done)
        };
        match (done, left) {
            (Ok(_), Some(left)) => Err(left),
            (Err(failure), Some(left)) => Err(failure.and(&left)),
            (done, None) => done,
        }
    }

    /// Judges with a recipe what has finished, or relies on the user's --ended.
    async fn judge(
        &self,
        app: &App,
        recipe: &RecipeEntry,
        listing: &mut Listing,
        record_index: &RecordIndex,
        providers: &Providers,
    ) -> Result<Findings, Failure> {
        if self.ended {
            recipes::check_vouched(recipe, &self.selectors.project)?;
        }
        let findings = recipes::judge(recipe, listing, record_index, providers, self.ended).await?;
        recipes::warn_of_running(app, &findings);
        Ok(findings)
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

    fn plan(
        &self,
        app: &App,
        listing: &Listing,
        record_index: &RecordIndex,
        selection: Selection<'_>,
    ) -> Plan {
        plan::build(PlanInput {
            identities: Vec::new(),
            inventory: &listing.inventory,
            record_index,
            selectors: selection.selectors,
            findings: selection.findings,
            protect: &app.config.protect,
            force: self.force,
            now: Timestamp::now(),
        })
    }

    /// Refuses plans that are too large or not confirmed.
    async fn check(
        &self,
        app: &App,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> Result<(), Failure> {
        app.caps(self.max, self.max_percent).check(plan)?;
        if self.all && !self.yes && !plan.items.is_empty() {
            confirm(app, plan.items.len(), cancel).await?;
        }
        Ok(())
    }

    /// Writes the certificate; returns why it lacks the list after the release, if it does.
    async fn certify(
        &self,
        app: &App,
        providers: &Providers,
        ledger: Option<&Ledger>,
        started_at: Timestamp,
        before: &Listing,
        report: &Report,
    ) -> Result<Option<Failure>, Failure> {
        let Some(path) = &self.certificate else { return Ok(None) };
        let after = app.list(providers, &[]).await;
        let certificate = Certificate::issue(CertificateEvidence {
            ledger: ledger.map(|ledger| ledger.id()),
            identities: app
                .identities(providers, |name| before.is_reachable(name))
                .await
                .unwrap_or_default(),
            started_at,
            baseline: &before.inventory,
            report,
            inventory: &after.inventory,
            unread: before.unread().into_iter().chain(after.unread()).collect(),
            outstanding: Vec::new(),
            kept: Vec::new(),
            unexplained: Vec::new(),
        });
        certificate.write(path).map_err(|error| {
            let message = format!("cannot write the certificate {}", path.display());
            Failure::file(&message, &error).after_output()
        })?;
        let unread = after.failure();
        let reservation = if unread.is_some() { " (inventory unread)" } else { "" };
        app.printer.say(&format!("certificate: {}{reservation}", path.display()));
        Ok(unread)
    }
}

/// Writes a plan for later, bound to the providers and to the present state of each object.
///
/// Providers from which the plan releases nothing are left out: the plan does not depend on them.
async fn keep(
    app: &App,
    providers: &Providers,
    plan: &Plan,
    path: &std::path::Path,
) -> Result<(), Failure> {
    let is_used = |name| plan.items.iter().any(|item| item.seen.provider == name);
    let identities = app.identities(providers, is_used).await?;
    let plan = plan::examine(plan.clone(), providers).await?;
    Plan { identities, ..plan }.write(path)?;
    app.printer.say(&format!("plan saved; apply it with: creel apply {}", path.display()));
    Ok(())
}

/// Removes what creel tracks from a plan, because its release could not be recorded.
fn spare_tracked(mut plan: Plan, record_index: &RecordIndex) -> Plan {
    let (free, tracked): (Vec<_>, Vec<_>) = std::mem::take(&mut plan.items)
        .into_iter()
        .partition(|item| record_index.ownership(&item.seen) == Ownership::Foreign);
    plan.items = free;
    plan.spared.extend(tracked.into_iter().map(|item| plan::SparedItem {
        seen: item.seen,
        rule: item.rule,
        reason: "creel tracks it, and the ledger cannot be written".to_owned(),
    }));
    plan
}

/// Returns a failure if orphans were left because the ledger cannot be written.
fn orphans_left(
    error: LedgerError,
    listing: &Listing,
    record_index: &RecordIndex,
) -> Option<Failure> {
    let is_orphan = |seen: &&Observed| {
        matches!(
            record_index.ownership(seen),
            Ownership::Unrecorded { liveness: Liveness::Dead, .. }
                | Ownership::Ours { liveness: Liveness::Dead, .. }
        )
    };
    let count = listing.inventory.iter().filter(is_orphan).count();
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
