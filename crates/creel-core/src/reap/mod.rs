//! The reaper: takes a plan, releases, verifies, records, reports.
//!
//! ```text
//!   plan ─▶ order by use ─▶ for each, as many at once as the provider bears, in its turn:
//!             look again (drift? protected?), unless seen just now ─▶ record the release
//!             ─▶ release, with retries ─▶ verify its absence ─▶ close the record
//! ```
//!
//! One bad item never delays the others: an object waits only for those of
//! the plan that use it. A crash in the middle leaves records in `Releasing`,
//! which the next reconcile finishes; objects that the ledger does not track
//! are simply still there, or not, for the next sweep to see.

mod audit;
mod certificate;
mod dispatch;
mod item;
mod order;
mod pace;
mod send;
mod turns;
mod unfinished;
mod warrant;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::id::ResourceId;
use crate::ledger::{Ledger, LedgerError};
use crate::plan::{Binding, Plan, PlanItem};
use crate::provider::{ErrorClass, Kind, Observed, ProviderError, ProviderName, Providers};
use crate::recipe::Proof;
use crate::retry::RetryPolicy;
use crate::select::{ProtectRule, Selector};

use audit::Audit;
pub use certificate::{Certificate, Difference, Entry, Evidence, Unread, Verdict, appeared};
use dispatch::Dispatcher;
use unfinished::Unfinished;

/// How a plan is carried out.
#[derive(Debug, Clone, Default)]
pub struct ReapOptions {
    /// Ask politely first and wait this long; `None` kills at once.
    pub stop_timeout: Option<Duration>,
    /// How failed calls are tried again.
    pub retry: RetryPolicy,
    /// Start nothing more after the first failure.
    pub fail_fast: bool,
    /// How many releases at once; `None` adapts.
    pub concurrency: Option<usize>,
    /// What is never released, checked again just before each release.
    pub protect: Vec<ProtectRule>,
    /// What was meant: an item that fits none of these any more is left alone.
    pub selectors: Vec<Selector>,
    /// When the items were seen, if they were seen by whoever carries out the plan now.
    pub seen_at: Option<Instant>,
    /// The releases are on record from an earlier try: only what comes of them is recorded, and
    /// what fails again stays quarantined, with the newest reason.
    pub is_second_try: bool,
    /// Start nothing more once this is cancelled.
    pub cancel: CancellationToken,
}

/// What came of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It would be released.
    Planned,
    /// Its absence was verified.
    Gone,
    /// The provider took the order but has not finished it.
    Accepted,
    /// It will not go; the ledger keeps why.
    Quarantined,
    /// It is still there.
    Failed,
    /// It changed since it was seen, and was left alone.
    Drifted,
    /// It was selected but left alone.
    Spared,
}

impl Outcome {
    /// Returns the word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Gone => "gone",
            Self::Accepted => "accepted",
            Self::Quarantined => "quarantined",
            Self::Failed => "failed",
            Self::Drifted => "drifted",
            Self::Spared => "spared",
        }
    }

    fn is_failure(self) -> bool {
        matches!(self, Self::Accepted | Self::Quarantined | Self::Failed)
    }
}

/// One item and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct ItemReport {
    /// The world.
    pub provider: ProviderName,
    /// What it is.
    pub kind: Kind,
    /// The provider's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The rule that selected it.
    pub rule: String,
    /// What came of it.
    pub result: Outcome,
    /// How many tries it took.
    pub tries: u32,
    /// Why, where there is something to say.
    pub reason: Option<String>,
    /// Until when the provider keeps it although the delete was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<Timestamp>,
    /// What proved that it has finished, where a recipe asked for proof.
    #[serde(flatten)]
    pub evidence: Option<Proof>,
    /// The resource, where this ledger tracks it.
    #[serde(skip)]
    pub resource: Option<ResourceId>,
    /// The class of the last error, where there was one.
    #[serde(skip)]
    pub class: Option<ErrorClass>,
    /// Whether it was reported before that the provider keeps it, and the date has not passed.
    #[serde(skip)]
    pub known_before: bool,
}

impl ItemReport {
    /// Describes something that was left alone, and why.
    pub(crate) fn kept(item: &PlanItem, reason: String) -> Self {
        Self::new(item, Outcome::Spared, Some(reason))
    }

    fn new(item: &PlanItem, result: Outcome, reason: Option<String>) -> Self {
        Self {
            provider: item.seen.provider,
            kind: item.seen.kind,
            id: item.seen.id.clone(),
            name: item.seen.name.clone(),
            rule: item.rule.clone(),
            result,
            tries: 0,
            reason,
            kept_until: None,
            evidence: item.evidence.clone(),
            resource: item.resource,
            class: None,
            known_before: false,
        }
    }

    /// Returns whether something that was to go is not verified gone. What a provider keeps until
    /// a date is so once; after that it is only listed until the date.
    pub fn is_failure(&self) -> bool {
        self.result.is_failure() && !self.known_before
    }

    /// Returns whether there is nothing to be done about it.
    pub fn is_settled(&self) -> bool {
        matches!(self.result, Outcome::Gone | Outcome::Spared) || self.known_before
    }
}

/// What came of a plan.
#[derive(Debug, Clone, Default, Serialize)]
#[must_use]
pub struct Report {
    /// Every item, released or spared.
    pub items: Vec<ItemReport>,
    /// How many changes and tries could not be written to the ledger: the disk is full.
    #[serde(skip_serializing_if = "is_zero")]
    pub audit_incomplete: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Report {
    /// Describes a plan that was not carried out.
    pub fn of_plan(plan: &Plan) -> Self {
        let planned = plan.items.iter().map(|item| ItemReport::new(item, Outcome::Planned, None));
        let mut report = Self { items: planned.collect(), audit_incomplete: 0 };
        report.add_spared(plan);
        report
    }

    /// Adds items that were not tried, because their world could not be asked.
    pub fn add_untried<'a>(
        &mut self,
        items: impl IntoIterator<Item = &'a PlanItem>,
        error: &ProviderError,
    ) {
        self.items.extend(items.into_iter().map(|item| {
            let reason = format!("not tried: {}", error.message);
            ItemReport {
                class: Some(error.class),
                ..ItemReport::new(item, Outcome::Failed, Some(reason))
            }
        }));
    }

    /// Returns how many items ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.items.iter().filter(|item| item.result == outcome).count()
    }

    /// Returns whether everything that was tried is verified gone.
    pub fn is_all_gone(&self) -> bool {
        !self.items.iter().any(ItemReport::is_failure)
    }

    /// Returns whether a provider stopped answering.
    pub fn lost_a_provider(&self) -> bool {
        let lost =
            |item: &ItemReport| item.is_failure() && item.class == Some(ErrorClass::Unreachable);
        self.items.iter().any(lost)
    }

    fn add_spared(&mut self, plan: &Plan) {
        self.items.extend(plan.spared.iter().map(|spared| ItemReport {
            provider: spared.seen.provider,
            kind: spared.seen.kind,
            id: spared.seen.id.clone(),
            name: spared.seen.name.clone(),
            rule: spared.rule.clone(),
            result: Outcome::Spared,
            tries: 0,
            reason: Some(spared.reason.clone()),
            kept_until: None,
            evidence: None,
            resource: None,
            class: None,
            known_before: false,
        }));
    }
}

/// Hears how the work goes on.
pub trait Progress: Send + Sync {
    /// So many items will be tried.
    fn planned(&self, _count: usize) {}
    /// One item is done.
    fn finished(&self, _item: &ItemReport) {}
}

/// Nobody listens.
impl Progress for () {}

/// Releases what plans say.
#[derive(Debug, Clone)]
pub struct Reaper {
    providers: Providers,
    /// Where releases are recorded; without one only untracked objects are released.
    ledger: Option<Ledger>,
}

impl Reaper {
    /// Makes a reaper for these worlds.
    pub fn new(providers: Providers, ledger: Option<Ledger>) -> Self {
        Self { providers, ledger }
    }

    /// Carries out a plan and says what came of every item.
    pub async fn run(&self, plan: &Plan, options: &ReapOptions, progress: &dyn Progress) -> Report {
        progress.planned(plan.items.len());
        let audit = Arc::new(Audit::start(self.ledger.clone()));
        audit.announce(&plan.items).await;
        let mut report = self.run_local_first(&plan.items, options, progress, &audit).await;
        report.add_spared(plan);
        // Tried last: what was released may have made room.
        report.audit_incomplete = audit.finish().await;
        report
    }

    /// Releases what is on this machine first where the disk is full: that makes room.
    async fn run_local_first(
        &self,
        items: &[PlanItem],
        options: &ReapOptions,
        progress: &dyn Progress,
        audit: &Arc<Audit>,
    ) -> Report {
        let is_full = self.ledger.as_ref().is_some_and(Ledger::is_disk_full);
        let is_local = |item: &PlanItem| self.providers.is_local(item.seen.provider);
        if !is_full || !items.iter().any(is_local) {
            return self.run_in_order(items, options, progress, audit).await;
        }
        let (local, rest): (Vec<_>, Vec<_>) = items.iter().cloned().partition(is_local);
        let mut report = self.run_in_order(&local, options, progress, audit).await;
        report.items.extend(self.run_in_order(&rest, options, progress, audit).await.items);
        report
    }

    /// Releases the object of one record that is this process's own.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be read; what came of the release is in the report.
    pub async fn release_record(
        &self,
        resource: ResourceId,
        rule: &str,
        options: &ReapOptions,
    ) -> Result<ItemReport, LedgerError> {
        let unknown = LedgerError::Unknown { id: resource };
        let Some(ledger) = &self.ledger else { return Err(unknown) };
        let record = ledger.record(resource).await?.ok_or(unknown)?;
        let object = record.state.object().unwrap_or(&record.name);
        let item = PlanItem {
            seen: Observed {
                name: record.name.clone(),
                ..Observed::known_by_id(record.provider, record.kind, object)
            },
            rule: rule.to_owned(),
            resource: Some(resource),
            binding: Binding::Identity,
            evidence: None,
        };
        let mut report = self.run(&Plan::of_ours(vec![item]), options, &()).await;
        Ok(report.items.remove(0))
    }

    async fn run_in_order(
        &self,
        items: &[PlanItem],
        options: &ReapOptions,
        progress: &dyn Progress,
        audit: &Arc<Audit>,
    ) -> Report {
        let job = item::Job {
            providers: &self.providers,
            ledger: self.ledger.as_ref(),
            options,
            audit,
            leaving: items.iter().map(|item| item.seen.id.as_str()).collect(),
            unfinished: Unfinished::read(self.ledger.as_ref()).await,
            now: Timestamp::now(),
        };
        let mut dispatcher = Dispatcher::new(items, &self.providers, options.concurrency);
        let mut under_way = FuturesUnordered::new();
        let mut results: Vec<Option<ItemReport>> = vec![None; items.len()];
        loop {
            if options.cancel.is_cancelled() {
                dispatcher.stop("not tried: interrupted");
            }
            while let Some((next, turn)) = dispatcher.next() {
                let release = job.release(&items[next]);
                under_way.push(async move { (next, turn.cover(release).await) });
            }
            let awaits_turn = dispatcher.awaits_turn();
            let (index, result) = tokio::select! {
                Some(done) = under_way.next() => done,
                () = dispatcher.turn(), if awaits_turn => continue,
                () = options.cancel.cancelled(), if awaits_turn => continue,
                else => break,
            };
            dispatcher.finish(index, result.class);
            progress.finished(&result);
            if options.fail_fast && result.is_failure() {
                dispatcher.stop("not tried: stopped at the first failure");
            }
            results[index] = Some(result);
        }
        let untried = |item| {
            let reason = dispatcher.stopped().unwrap_or("not tried");
            ItemReport::new(item, Outcome::Spared, Some(reason.to_owned()))
        };
        let reports = results.into_iter().zip(items);
        let items = reports.map(|(r, item)| r.unwrap_or_else(|| untried(item))).collect();
        Report { items, audit_incomplete: 0 }
    }
}
