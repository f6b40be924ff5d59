//! `creel sweep`: release what selectors mean.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use creel_core::failure::Code;
use creel_core::ledger::{Ledger, LedgerError};
use creel_core::owner::Liveness;
use creel_core::plan::{self, Plan, PlanInput};
use creel_core::provider::{Observed, Providers};
use creel_core::reap::{Certificate, Evidence, Reaper, Report};
use creel_core::recipe::{Entry, Findings};
use creel_core::select::{Ownership, Preset, Roll, Selector};
use creel_core::task;
use futures::join;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Listing};
use crate::output::progress::SweepBar;
use crate::output::{Exit, Failure};

use super::recipes;
use super::release_args::ReleaseArgs;
use super::report::{Shown, verdict};
use super::selector_args::SelectorArgs;
use super::settle::settle;
use super::unfinished;

/// Release what the selectors mean; a dry run until --apply
///
/// Without selectors it means what creel itself made and nobody answers for any
/// more; what its owner asked to keep stays until that time is over, or --owned
/// takes it. Foreign resources need a narrowing selector (--label, --name, --project,
/// --state, --older-than, --idle-for), a --preset, a --recipe, or --all. What is
/// protected, in use by something that stays, or held by a live owner is spared
/// and said so.
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
  creel sweep --preset stopped                          look first
  creel sweep --preset stopped --apply                  then do it
  creel sweep --label terminal-bench --apply            all with a label, running ones too
  creel sweep --kind container --older-than 24h --apply
  creel sweep --provider daytona --idle-for 1d --apply
  creel sweep --recipe harbor                           what a killed harbor left, with proof
  creel sweep --recipe harbor --ended --apply           at once: you know that it has ended
  creel sweep --recipe compose --ended --project job    what a killed `docker compose up` left
  creel sweep --recipe testcontainers --older-than 2d --apply
  creel sweep --project my-job --plan-out plan.json     keep the plan, apply it later
  creel sweep --label bench --apply --certificate c.json --max 200")]
pub(crate) struct Sweep {
    #[command(flatten)]
    selectors: SelectorArgs,
    /// A named set of selectors: stopped, default, aggressive
    #[arg(long, value_name = "NAME", help_heading = "Selectors")]
    preset: Option<Preset>,
    /// What a harness left behind and is proven finished: harbor, compose, testcontainers …
    #[arg(long, value_name = "NAME", help_heading = "Selectors", conflicts_with = "preset")]
    recipe: Option<String>,
    /// The harness has ended, you vouch for it: its age and its processes do not count
    ///
    /// What is protected, held by a live guard, or in use by something that
    /// stays is spared all the same. With the recipe compose it needs --project.
    #[arg(long, help_heading = "Selectors", requires = "recipe")]
    ended: bool,
    /// Everything that fits the other selectors, foreign or not; asks for confirmation
    #[arg(long, help_heading = "Selectors", conflicts_with_all = ["preset", "recipe"])]
    all: bool,
    /// Release; without it the plan is only shown
    #[arg(long)]
    apply: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Release also what a live owner holds
    #[arg(long)]
    force: bool,
    /// Keep the plan in a file, for `creel apply`
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    plan_out: Option<PathBuf>,
    /// Keep the proof: baseline, actions, final inventory, difference
    #[arg(long, value_name = "FILE", requires = "apply")]
    certificate: Option<PathBuf>,
    /// Refuse to release more than this many
    #[arg(long, value_name = "N")]
    max: Option<usize>,
    /// Refuse to release more than this part of what is listed
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    max_percent: Option<u8>,
    #[command(flatten)]
    release: ReleaseArgs,
}

/// What a sweep means.
struct Meant<'a> {
    selectors: &'a [Selector],
    /// What a recipe found, where one narrows the selectors.
    findings: Option<&'a Findings>,
}

impl Sweep {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let started = Instant::now();
        let selectors = self.meant()?;
        let recipe = self.recipe.as_ref().map(|name| recipes::take(app, name)).transpose()?;
        let mut options = self.release.options(app)?;
        options.selectors.clone_from(&selectors);
        let providers = app.providers(&self.selectors.provider)?;
        options.seen_at = Some(Instant::now());
        // All kinds are listed, whatever is meant: containers show what is in use.
        let (ledger, mut listing) = join!(self.ledger(app), app.list(&providers, &[]));
        let (ledger, unwritable) = ledger?;
        let roll = match unwritable {
            Some(_) => app.roll_of_labels(),
            None => App::roll(ledger.as_ref()).await?,
        };
        let findings = match &recipe {
            Some(recipe) => Some(self.judge(app, recipe, &mut listing, &roll, &providers).await?),
            None => None,
        };
        listing.date_images(app, &selectors, &roll, &providers).await?;
        let input = Meant { selectors: &selectors, findings: findings.as_ref() };
        let plan = self.plan(app, &listing, &roll, input);
        let plan = if unwritable.is_some() { spare_tracked(plan, &roll) } else { plan };
        let left = unwritable.and_then(|error| orphans_left(error, &listing, &roll));
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
        // A long table needs room: what nobody asks for any more goes first.
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
                settle(app, ledger, &providers).await;
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

    /// Asks a recipe what has finished, or takes the user's word for it.
    async fn judge(
        &self,
        app: &App,
        recipe: &Entry,
        listing: &mut Listing,
        roll: &Roll,
        providers: &Providers,
    ) -> Result<Findings, Failure> {
        if self.ended {
            recipes::check_vouched(recipe, &self.selectors.project)?;
        }
        let findings = recipes::judge(recipe, listing, roll, providers, self.ended).await?;
        recipes::warn_of_running(app, &findings);
        Ok(findings)
    }

    /// Returns what is meant; refuses what would mean foreign resources by accident.
    fn meant(&self) -> Result<Vec<Selector>, Failure> {
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

    /// Opens the ledger. Releasing foreign things may go on without one that cannot be
    /// written: somebody with a full disk must be able to clean up. Then the error comes with it.
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

    fn plan(&self, app: &App, listing: &Listing, roll: &Roll, meant: Meant<'_>) -> Plan {
        plan::build(PlanInput {
            worlds: Vec::new(),
            inventory: &listing.inventory,
            roll,
            selectors: meant.selectors,
            findings: meant.findings,
            protect: &app.config.protect,
            force: self.force,
            now: Timestamp::now(),
        })
    }

    /// Refuses plans that are too large or that nobody confirmed.
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

    /// Writes the certificate; returns why the list after the release is missing in it, if it is.
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
        let certificate = Certificate::issue(Evidence {
            ledger: ledger.map(|ledger| ledger.id()),
            worlds: app
                .worlds(providers, |name| before.has_answered(name))
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
            Failure::file(&message, &error).after_answer()
        })?;
        let unread = after.failure();
        let reservation = if unread.is_some() { " (inventory unread)" } else { "" };
        app.printer.say(&format!("certificate: {}{reservation}", path.display()));
        Ok(unread)
    }
}

/// Writes a plan for later, bound to the worlds and to what each object is like now.
///
/// Worlds that the plan takes nothing from are left out: it does not depend on them.
async fn keep(
    app: &App,
    providers: &Providers,
    plan: &Plan,
    path: &std::path::Path,
) -> Result<(), Failure> {
    let meant = |name| plan.items.iter().any(|item| item.seen.provider == name);
    let worlds = app.worlds(providers, meant).await?;
    let plan = plan::examine(plan.clone(), providers).await?;
    Plan { worlds, ..plan }.write(path)?;
    app.printer.say(&format!("plan kept; carry it out with: creel apply {}", path.display()));
    Ok(())
}

/// Takes out of a plan what creel tracks, because it could not be recorded.
fn spare_tracked(mut plan: Plan, roll: &Roll) -> Plan {
    let (free, tracked): (Vec<_>, Vec<_>) = std::mem::take(&mut plan.items)
        .into_iter()
        .partition(|item| roll.ownership(&item.seen) == Ownership::Foreign);
    plan.items = free;
    plan.spared.extend(tracked.into_iter().map(|item| plan::SparedItem {
        seen: item.seen,
        rule: item.rule,
        reason: "creel tracks it, and the ledger cannot be written".to_owned(),
    }));
    plan
}

/// Says that orphans were left because the ledger cannot be written, where there are any.
fn orphans_left(error: LedgerError, listing: &Listing, roll: &Roll) -> Option<Failure> {
    let is_orphan = |seen: &&Observed| {
        matches!(
            roll.ownership(seen),
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
            .after_answer()
    })
}

async fn confirm(app: &App, count: usize, cancel: &CancellationToken) -> Result<(), Failure> {
    let unconfirmed = |message: &str| Failure::new(Code::Unconfirmed, Exit::Refused, message);
    if !std::io::stdin().is_terminal() {
        return Err(unconfirmed("--all means everything, and there is nobody to confirm it")
            .hint("look at the plan without --apply, then add --yes"));
    }
    app.printer.warn(&format!("To be released, also what creel did not make: {count}"));
    let mut stderr = std::io::stderr();
    // A prompt that cannot be shown is answered by whatever comes in.
    let _ = write!(stderr, "Type yes to go on: ").and_then(|()| stderr.flush());
    // Whoever thinks about it must still be heard when they would rather stop.
    let answer = tokio::select! {
        answer = task::blocking(|| std::io::stdin().lines().next()) => answer,
        () = cancel.cancelled() => None,
    };
    match answer {
        Some(Ok(answer)) if answer.trim() == "yes" => Ok(()),
        _ => Err(unconfirmed("not confirmed; nothing was released")),
    }
}
