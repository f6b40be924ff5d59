//! `creel ls`: lists what exists, and who owns it.

use clap::Args;
use creel_core::pipeline::{Listing, Survey};
use creel_core::select::{Ownership, protection};
use creel_ledger::UnfinishedDelete;
use creel_model::labels;
use creel_model::os;
use creel_model::owner::{Liveness, Owner};
use creel_model::provider::{Kind, Observed, ProviderName, Retention, show_date};
use jiff::Timestamp;
use serde::Serialize;

use crate::app::{App, UnreachableJson, unlisted, unreachable_json};
use crate::output::{Exit, Failure, table};

use super::recipes;
use super::selector_args::SelectorArgs;
use super::unfinished;
use super::waiting::{self, WaitingWatchdog};

/// List resources and their owners
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel ls                                 all resources of all configured providers
  creel ls --kind container --state exited
  creel ls --label terminal-bench --older-than 2h
  creel ls --provider daytona --idle-for 1d
  creel ls --owned                         only resources of creel
  creel ls --recipe harbor                 only resources of Harbor, finished or not
  creel ls --json | jq '.resources[].name'")]
pub(crate) struct Ls {
    #[command(flatten)]
    selectors: SelectorArgs,
    /// Only resources of this harness, finished or not: harbor, compose …
    #[arg(long, value_name = "NAME", help_heading = "Selectors")]
    recipe: Option<String>,
}

/// The format that scripts rely on; documented in `docs/reference/json.md`.
#[derive(Serialize)]
struct LsJson<'a> {
    version: u32,
    resources: Vec<ResourceJson<'a>>,
    unreachable: Vec<UnreachableJson>,
    waiting: &'a [WaitingWatchdog],
    /// Deletes that were accepted and did not finish.
    unfinished: &'a [UnfinishedDelete],
}

#[derive(Serialize)]
struct ResourceJson<'a> {
    provider: ProviderName,
    kind: Kind,
    id: &'a str,
    name: &'a str,
    state: &'a str,
    created_at: Option<Timestamp>,
    last_active_at: Option<Timestamp>,
    labels: &'a labels::Labels,
    owner: Option<OwnerJson>,
    run: Option<String>,
    protected: bool,
    project: Option<&'a str>,
    size: Option<u64>,
    /// Set if its delete was accepted but the provider keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<&'a Retention>,
}

/// An owner as scripts see it.
#[derive(Debug, Serialize)]
pub(crate) struct OwnerJson {
    host: String,
    boot: String,
    pid: i32,
    started_at: Timestamp,
    command: Option<String>,
    state: Liveness,
}

impl OwnerJson {
    /// Returns the owner from the ledger, or from the labels if the ledger does not know it.
    fn of(seen: &Observed, ownership: &Ownership) -> Option<Self> {
        match ownership {
            Ownership::Foreign => None,
            Ownership::Ours { record, liveness } => Some(Self::from_owner(
                &record.owner.owner,
                record.owner.started_at(),
                Some(record.owner.command.to_string()),
                *liveness,
            )),
            Ownership::Unrecorded { liveness, .. }
            | Ownership::Labelled { liveness }
            | Ownership::OtherLedger { liveness, .. } => {
                let owner = labels::claimed_owner(&seen.labels)?;
                let started_ms = os::started_at_ms(&owner.process);
                let started_at = Timestamp::from_millisecond(started_ms).ok()?;
                Some(Self::from_owner(&owner, started_at, None, *liveness))
            }
        }
    }

    pub(crate) fn from_owner(
        owner: &Owner,
        started_at: Timestamp,
        command: Option<String>,
        state: Liveness,
    ) -> Self {
        let (host, boot, pid) = (owner.host.clone(), owner.boot.clone(), owner.process.pid);
        Self { host, boot, pid, started_at, command, state }
    }

    fn short(&self) -> String {
        format!("{} pid {}", self.state, self.pid)
    }
}

impl Ls {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let selector = self.selectors.selector()?;
        let recipe = self.recipe.as_ref().map(|name| recipes::load(app, name)).transpose()?;
        let providers = app.providers(&selector.providers)?;
        let ledger = app.ledger_if_any().await;
        let listing = Listing::read(&providers, &selector.kinds).await;
        let mut survey = Survey::new(listing, ledger.as_ref()).await?;
        let now = Timestamp::now();
        let (selectors, protect) = (std::slice::from_ref(&selector), &app.config.protect);
        survey.date_images(selectors, protect, &providers).await?;
        let Survey { mut listing, record_index, .. } = survey;
        listing.inventory.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        let (mut rows, mut orphans): (Vec<ListedResource>, usize) = (Vec::new(), 0);
        let marked = match &recipe {
            Some(entry) => entry.recipe.marked_among(&listing.inventory),
            None => vec![true; listing.inventory.len()],
        };
        for (seen, marked) in std::mem::take(&mut listing.inventory).into_iter().zip(marked) {
            let ownership = record_index.ownership(&seen);
            orphans += usize::from(is_orphan(&ownership, now));
            if marked && selector.matches(&seen, &ownership, now) {
                rows.push((seen, ownership));
            }
        }
        let waiting = match &ledger {
            Some(ledger) => waiting::for_late_creates(app, ledger).await?,
            None => Vec::new(),
        };
        let unfinished = unfinished::read(app, ledger.as_ref()).await;
        if app.printer.json {
            let open = OpenWork { waiting: &waiting, unfinished: &unfinished };
            print_json(app, &rows, &listing, (now, open));
        } else {
            print_table(app, rows, now, listing.unreachable.is_empty());
        }
        waiting.iter().for_each(|one| app.printer.say(&one.to_string()));
        unfinished::mention(app, &unfinished);
        // Reading never deletes; it only reports how much there is to release.
        if ledger.is_some() && orphans > 0 {
            app.printer.say(&format!("{orphans} orphaned; release them with: creel reconcile"));
        }
        unlisted(&listing.unreachable).map_or(Ok(Exit::Done), Err)
    }
}

/// One object and its ownership.
type ListedResource = (Observed, Ownership);

fn is_orphan(ownership: &Ownership, now: Timestamp) -> bool {
    match ownership {
        Ownership::Ours { liveness, record } => {
            *liveness == Liveness::Dead && !record.is_kept_on_request(now)
        }
        Ownership::Unrecorded { liveness, .. } => *liveness == Liveness::Dead,
        Ownership::Foreign | Ownership::Labelled { .. } | Ownership::OtherLedger { .. } => false,
    }
}

/// Unfinished work, besides the resources themselves.
#[derive(Clone, Copy)]
struct OpenWork<'a> {
    /// Watchdogs that wait for late creates.
    waiting: &'a [WaitingWatchdog],
    /// Deletes that were accepted and did not finish.
    unfinished: &'a [UnfinishedDelete],
}

fn print_json(
    app: &App,
    rows: &[ListedResource],
    listing: &Listing,
    (now, open): (Timestamp, OpenWork<'_>),
) {
    let OpenWork { waiting, unfinished } = open;
    let resources = rows.iter().map(|(seen, ownership)| ResourceJson {
        provider: seen.provider,
        kind: seen.kind,
        id: &seen.id,
        name: &seen.name,
        state: &seen.state,
        created_at: seen.created_at,
        last_active_at: seen.last_active_at,
        labels: &seen.labels,
        owner: OwnerJson::of(seen, ownership),
        run: run_of(seen, ownership),
        protected: protection(&app.config.protect, seen, now).is_some(),
        project: seen.project.as_deref(),
        size: seen.size,
        kept: seen.retained.as_ref(),
    });
    let resources = resources.collect();
    let unreachable = unreachable_json(&listing.unreachable);
    app.printer.json(&LsJson { version: 1, resources, unreachable, waiting, unfinished });
}

fn run_of(seen: &Observed, ownership: &Ownership) -> Option<String> {
    match ownership {
        Ownership::Foreign => None,
        _ => seen.labels.get(labels::RUN).map(str::to_owned),
    }
}

/// Returns the state, with whether it is retained or protected.
fn shown_state(seen: &Observed, protected: bool) -> String {
    match &seen.retained {
        Some(kept) => format!("{} (deleted, kept until {})", seen.state, show_date(kept.until)),
        None if protected => format!("{} (protected)", seen.state),
        None => seen.state.clone(),
    }
}

/// Prints a table; drops each object once its line is made, to save memory.
fn print_table(app: &App, rows: Vec<ListedResource>, now: Timestamp, complete: bool) {
    if rows.is_empty() {
        // An empty list is conclusive only if every provider responded.
        if complete {
            app.printer.say("nothing matches");
        }
        return;
    }
    let mut table = table::new(&["KIND", "ID", "NAME", "STATE", "AGE", "PROJECT", "OWNER"]);
    for (seen, ownership) in rows {
        let state = shown_state(&seen, protection(&app.config.protect, &seen, now).is_some());
        let owner = OwnerJson::of(&seen, &ownership).map(|owner| owner.short()).unwrap_or_default();
        table.add_row([
            seen.kind.to_string(),
            table::short_id(&seen.id).to_owned(),
            seen.names().collect::<Vec<_>>().join(", "),
            state,
            table::age(seen.created_at, now),
            seen.project.unwrap_or_default(),
            owner,
        ]);
    }
    app.printer.data(&table::render(&table));
}
