//! The reaper: executes a plan, and releases, verifies, records and reports.
//!
//! ```text
//!   plan ─▶ order by use ─▶ for each, as many at once as the provider permits:
//!             inspect again (drift? protected?), unless seen just now ─▶ record the release
//!             ─▶ release, with retries ─▶ verify its absence ─▶ close the record
//! ```
//!
//! One bad item never delays the others: an object waits only for those of the plan that use it. A
//! crash in the middle leaves records in `Releasing`, which the next reconcile finishes. An object
//! that the ledger does not track either still exists or not, and the next sweep sees that.

mod audit;
mod authorization;
mod certificate;
mod dependents;
mod dispatch;
mod item;
mod pace;
mod permits;
mod queue;
mod send;
mod unfinished;
mod verify;

use std::sync::Arc;
use std::time::{Duration, Instant};

use audit::Audit;
use creel_ledger::{Ledger, LedgerError};
use creel_model::id::ResourceId;
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{ErrorClass, Kind, ProviderError, ProviderName, Providers};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::plan::{Plan, PlanItem};
use crate::recipe::Proof;
use crate::select::{ProtectRule, Selector};
pub(crate) use certificate::CertificateEvidence;
pub use certificate::{Certificate, CertificateVerdict, Difference, UnreadInventory, appeared};
use dispatch::Dispatcher;
use unfinished::Unfinished;

/// How a plan is executed.
#[derive(Debug, Clone, Default)]
pub struct ReapOptions {
    /// Stop gracefully first and wait this long; `None` kills immediately.
    pub stop_timeout: Option<Duration>,
    /// How failed calls are retried.
    pub retry: RetryPolicy,
    /// Start no more items after the first failure.
    pub fail_fast: bool,
    /// Maximum number of concurrent releases; `None` adapts.
    pub concurrency: Option<usize>,
    /// Objects that are never released. This is checked again just before each release.
    pub protect: Vec<ProtectRule>,
    /// Start no more items once this is cancelled.
    pub cancel: CancellationToken,
}

/// What must hold for the items of one plan.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReapConditions<'a> {
    /// The selectors of the plan. An item that no longer matches any of them is left alone.
    pub(crate) selectors: &'a [Selector],
    /// When the items were observed, if this process observed them for the plan it executes.
    pub(crate) seen_at: Option<Instant>,
    /// Whether the releases are already on record from an earlier attempt.
    ///
    /// Only their outcome is recorded then. An item that fails again stays quarantined, with the
    /// newest reason.
    pub(crate) is_second_try: bool,
}

/// The outcome of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It would be released.
    Planned,
    /// Its absence was verified.
    Gone,
    /// The provider accepted the request but has not finished it.
    Accepted,
    /// It cannot be removed; the ledger has the reason.
    Quarantined,
    /// It still exists.
    Failed,
    /// It changed since it was observed, and was left alone.
    Drifted,
    /// It was selected but left alone.
    Spared,
}

impl Outcome {
    /// Returns the stored name.
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

/// One item and its outcome.
#[derive(Debug, Clone, Serialize)]
pub struct ItemReport {
    /// The provider.
    pub provider: ProviderName,
    /// The kind of the object.
    pub kind: Kind,
    /// The provider's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The rule that selected it.
    pub rule: String,
    /// The outcome.
    pub result: Outcome,
    /// The number of attempts.
    pub tries: u32,
    /// The reason, if there is one.
    pub reason: Option<String>,
    /// Until when the provider keeps it, although the delete was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<Timestamp>,
    /// The proof that it has finished, if a recipe required proof.
    #[serde(flatten)]
    pub evidence: Option<Proof>,
    /// The resource, if this ledger tracks it.
    #[serde(skip)]
    pub resource: Option<ResourceId>,
    /// The class of the last error, if there was one.
    #[serde(skip)]
    pub class: Option<ErrorClass>,
    /// Whether an earlier report said that the provider keeps it, and the date has not passed.
    #[serde(skip)]
    pub known_before: bool,
    /// Whether it was left alone because its label or a rule protects it.
    #[serde(skip)]
    pub is_protected: bool,
}

impl ItemReport {
    /// Describes an object that was left alone, and why.
    pub(crate) fn kept(item: &PlanItem, reason: String) -> Self {
        Self::new(item, Outcome::Spared, Some(reason))
    }

    /// Describes an object that was not tried, because its release could not be recorded.
    pub(crate) fn untried(item: &PlanItem, error: &LedgerError) -> Self {
        Self::new(item, Outcome::Failed, Some(format!("not tried: {error}")))
    }

    /// Describes an object that is protected.
    fn protected(item: &PlanItem, reason: String) -> Self {
        Self { is_protected: true, ..Self::new(item, Outcome::Spared, Some(reason)) }
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
            is_protected: false,
        }
    }

    /// Returns whether an object that should be gone is not verified gone.
    ///
    /// An object that a provider keeps until a date fails once. After that it is only listed until
    /// the date.
    pub fn is_failure(&self) -> bool {
        self.result.is_failure() && !self.known_before
    }

    /// Returns whether nothing is left to do for it.
    pub fn is_settled(&self) -> bool {
        matches!(self.result, Outcome::Gone | Outcome::Spared) || self.known_before
    }
}

/// The outcome of a plan.
#[derive(Debug, Clone, Default, Serialize)]
#[must_use]
pub struct Report {
    /// All items, released or spared.
    pub items: Vec<ItemReport>,
    /// How many changes and attempts could not be written to the ledger, because the disk is full.
    #[serde(skip_serializing_if = "is_zero")]
    pub audit_incomplete: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Report {
    /// Describes a plan that was not executed.
    pub fn of_plan(plan: &Plan) -> Self {
        let planned = plan.items.iter().map(|item| ItemReport::new(item, Outcome::Planned, None));
        let mut report = Self { items: planned.collect(), audit_incomplete: 0 };
        report.add_spared(plan);
        report
    }

    /// Adds items that were not attempted because their provider could not be reached.
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

    /// Returns how many items have this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.items.iter().filter(|item| item.result == outcome).count()
    }

    /// Returns whether everything that was attempted is verified gone.
    pub fn is_all_gone(&self) -> bool {
        !self.items.iter().any(ItemReport::is_failure)
    }

    /// Returns whether the object of a record is verified gone.
    pub fn has_released(&self, resource: ResourceId) -> bool {
        let mut items = self.items.iter();
        items.any(|item| item.resource == Some(resource) && item.result == Outcome::Gone)
    }

    /// Returns whether a provider stopped responding.
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
            is_protected: false,
        }));
    }
}

/// Receives progress notifications.
pub trait Progress: Send + Sync {
    /// Reports the number of items that will be attempted.
    fn planned(&self, _count: usize) {}
    /// Reports one finished item.
    fn finished(&self, _item: &ItemReport) {}
}

/// Ignores all notifications.
impl Progress for () {}

/// What all items of one plan share.
#[derive(Clone, Copy)]
struct ReapContext<'a> {
    options: &'a ReapOptions,
    conditions: ReapConditions<'a>,
    progress: &'a dyn Progress,
    audit: &'a Arc<Audit>,
}

/// Releases the items of plans. Only the [pipeline](crate::pipeline) starts it.
#[derive(Debug, Clone)]
pub(crate) struct Reaper {
    providers: Providers,
    /// Records the releases; without a ledger, only untracked objects are released.
    ledger: Option<Ledger>,
}

impl Reaper {
    /// Creates a reaper for these providers.
    pub(crate) fn new(providers: Providers, ledger: Option<Ledger>) -> Self {
        Self { providers, ledger }
    }

    /// Executes a plan and reports the outcome of every item.
    pub(crate) async fn run(
        &self,
        plan: &Plan,
        options: &ReapOptions,
        conditions: ReapConditions<'_>,
        progress: &dyn Progress,
    ) -> Report {
        progress.planned(plan.items.len());
        let audit = Arc::new(Audit::start(self.ledger.clone()));
        audit.announce(&plan.items, &self.providers).await;
        let pass = ReapContext { options, conditions, progress, audit: &audit };
        let mut report = self.run_local_first(&plan.items, pass).await;
        report.add_spared(plan);
        // Written last, because the releases may have made space.
        report.audit_incomplete = audit.finish().await;
        report
    }

    /// Releases local items first if the disk is full, because that frees space.
    async fn run_local_first(&self, items: &[PlanItem], pass: ReapContext<'_>) -> Report {
        // Checked here, because the first write of this plan may be the first that meets a full disk.
        let is_full =
            self.ledger.as_ref().is_some_and(|ledger| ledger.is_disk_full() || ledger.check_disk());
        let is_local = |item: &PlanItem| self.providers.is_local(item.seen.provider);
        if !is_full || !items.iter().any(is_local) {
            return self.run_in_order(items, pass).await;
        }
        let (local, rest): (Vec<_>, Vec<_>) = items.iter().cloned().partition(is_local);
        let mut report = self.run_in_order(&local, pass).await;
        report.items.extend(self.run_in_order(&rest, pass).await.items);
        report
    }

    async fn run_in_order(&self, items: &[PlanItem], pass: ReapContext<'_>) -> Report {
        let options = pass.options;
        let job = item::Job {
            providers: &self.providers,
            ledger: self.ledger.as_ref(),
            options,
            conditions: pass.conditions,
            audit: pass.audit,
            leaving: items.iter().map(|item| item.seen.id.as_str()).collect(),
            unfinished: Unfinished::read(self.ledger.as_ref()).await,
            now: Timestamp::now(),
        };
        let mut dispatcher = Dispatcher::new(items, &self.providers, options.concurrency);
        let mut in_flight = FuturesUnordered::new();
        let mut results: Vec<Option<ItemReport>> = vec![None; items.len()];
        loop {
            if options.cancel.is_cancelled() {
                dispatcher.stop("not tried: interrupted");
            }
            while let Some((next, permit)) = dispatcher.next() {
                let release = job.release(&items[next], permit);
                in_flight.push(async move { (next, release.await) });
            }
            let awaits_permit = dispatcher.awaits_permit();
            let (index, result) = tokio::select! {
                Some(done) = in_flight.next() => done,
                () = dispatcher.permit(), if awaits_permit => continue,
                () = options.cancel.cancelled(), if awaits_permit => continue,
                else => break,
            };
            dispatcher.finish(index, result.class);
            pass.progress.finished(&result);
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
