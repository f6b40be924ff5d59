//! The release of one item: inspect again, record, release, verify, close.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use creel_ledger::WhenFull;
use creel_ledger::{Event, Ledger, LedgerError, Record, StateName, Try};
use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::duration;
use creel_model::provider::retry::Tried;
use creel_model::provider::{
    ErrorClass, Observed, Permit, Provider, ProviderError, Providers, ReleaseMode,
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use tracing::{debug, error, info, warn};

use crate::plan;
use crate::plan::PlanItem;
use crate::select::protection;

use super::audit::Audit;
use super::authorization::{Authorization, Permission, judge};
use super::send::RELEASE;
use super::unfinished::Unfinished;
use super::verify::Reached;
use super::{ItemReport, Outcome, ReapConditions, ReapOptions};

/// How long an observation counts as fresh, if the provider rejects what has changed since.
const FRESH: Duration = Duration::from_secs(1);
/// The reason for an object whose removal was accepted, but which still exists.
const UNFINISHED: &str = "its removal was accepted but is not finished";

/// The data that all items of one plan share.
pub(super) struct Job<'a> {
    pub(super) providers: &'a Providers,
    pub(super) ledger: Option<&'a Ledger>,
    pub(super) options: &'a ReapOptions,
    pub(super) conditions: ReapConditions<'a>,
    pub(super) audit: &'a Audit,
    /// The ids that this plan releases.
    pub(super) leaving: HashSet<&'a str>,
    /// The deletes that were accepted earlier but did not finish.
    pub(super) unfinished: Unfinished,
    pub(super) now: Timestamp,
}

/// An item, with the provider that releases it and the permit to do so.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) item: &'a PlanItem,
    pub(super) provider: &'a Arc<dyn Provider>,
    pub(super) permit: &'a Permit,
}

/// The result of the second inspection before the release.
enum Recheck {
    /// It may be released.
    Go(Observed, Authorization),
    /// It is absent already.
    Absent,
    /// A label or a rule protects it.
    Protected(String),
    /// It is no longer what was selected.
    Drifted(String),
    /// Another object has its name.
    Replaced(String),
    /// Nothing proves that it is the recorded one.
    Unproven(String),
}

impl Job<'_> {
    /// Releases one item. Never fails; the report has the outcome.
    pub(super) async fn release(&self, item: &PlanItem, permit: Permit) -> ItemReport {
        let provider = match self.providers.get(item.seen.provider) {
            Ok(provider) => provider,
            Err(error) => return failed(item, &error, 0),
        };
        let target = Target { item, provider, permit: &permit };
        if self.was_seen_just_now(&**provider, item) {
            let authorization = Authorization::by_rule(item);
            return self.release_seen(target, &item.seen, &authorization).await;
        }
        let record = match self.record_of(item).await {
            Ok(record) => record,
            Err(report) => return report,
        };
        let record = record.as_ref();
        let recheck = |provider| self.recheck(provider, item, record);
        let recheck = self.with_retry(target, "inspect", recheck).await;
        let allowed = match recheck.result {
            Ok(Recheck::Go(seen, authorization)) => Some((seen, authorization)),
            Ok(Recheck::Absent) => None,
            Ok(Recheck::Protected(why)) => return ItemReport::protected(item, why),
            Ok(Recheck::Drifted(why)) => {
                return ItemReport::new(item, Outcome::Drifted, Some(why));
            }
            Ok(Recheck::Replaced(why)) => return self.spare_replacement(item, 0, why).await,
            Ok(Recheck::Unproven(why)) => return self.keep_unproven(item, 0, why).await,
            Err(error) => return failed(item, &error, recheck.tries),
        };
        // Names are given again: what was found by its name is released by its id.
        let found = allowed.as_ref().map(|(seen, _)| seen).filter(|seen| seen.id != item.seen.id);
        let found = found.map(|seen| PlanItem { seen: seen.clone(), ..item.clone() });
        let item = found.as_ref().unwrap_or(item);
        let why = allowed.as_ref().map_or(&item.rule, |(_, authorization)| &authorization.evidence);
        let is_found =
            allowed.is_some() && record.is_some_and(|record| record.state.object().is_none());
        if let Err(report) = self.record_request(item, is_found, why).await {
            return report;
        }
        if allowed.is_some() && record.is_some_and(|record| self.is_requested_again(record)) {
            self.audit.write_ahead(vec![planned(item, why)]).await;
        }
        match allowed {
            None => self.close(item, 0, Some("it was gone already".to_owned())).await,
            Some((seen, authorization)) => {
                self.release_seen(Target { item, ..target }, &seen, &authorization).await
            }
        }
    }

    /// Reads the record of an item right before its release.
    async fn record_of(&self, item: &PlanItem) -> Result<Option<Record>, ItemReport> {
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return Ok(None) };
        match ledger.record(resource).await {
            Ok(Some(record)) => Ok(Some(record)),
            Ok(None) => Err(ItemReport::untried(item, &LedgerError::Unknown { id: resource })),
            Err(error) => Err(ItemReport::untried(item, &error)),
        }
    }

    /// Returns whether a second inspection would show nothing new.
    ///
    /// A tracked object is always inspected. Its release is recorded first, and a change that is
    /// detected later could not undo that.
    fn was_seen_just_now(&self, provider: &dyn Provider, item: &PlanItem) -> bool {
        let is_fresh = self.conditions.seen_at.is_some_and(|at| at.elapsed() < FRESH);
        is_fresh
            && item.resource.is_none()
            && item.binding == plan::Binding::Selected
            && provider.refuses_if_changed(&item.seen)
    }

    async fn recheck(
        &self,
        provider: Arc<dyn Provider>,
        item: &PlanItem,
        record: Option<&Record>,
    ) -> Result<Recheck, ProviderError> {
        let (kind, id) = (item.seen.kind, item.seen.id.as_str());
        let inspection = match item.binding {
            plan::Binding::Examined => provider.examine(kind, id),
            plan::Binding::Selected | plan::Binding::Identity => provider.inspect(kind, id),
        };
        let Some(mut seen) = inspection.await? else { return Ok(Recheck::Absent) };
        // If the engine does not report an image's age, the value in the plan still holds.
        seen.tagged_at = seen.tagged_at.or(item.seen.tagged_at);
        if let Some(reason) = protection(&self.options.protect, &seen, self.now) {
            return Ok(Recheck::Protected(reason));
        }
        let leaving = |user: &str| self.leaving.contains(user);
        let changed =
            plan::drift(item, &seen, leaving).or_else(|| self.no_longer_selected(item, &seen));
        if let Some(reason) = changed {
            return Ok(Recheck::Drifted(reason));
        }
        if let Some(record) = record.filter(|record| record.state.object().is_none()) {
            return claim(&*provider, item, record, seen).await;
        }
        Ok(match judge(item, record, &seen) {
            Permission::Granted(authorization) => Recheck::Go(seen, authorization),
            Permission::Replaced(why) => Recheck::Replaced(why),
            Permission::Unproven(why) => Recheck::Unproven(why),
        })
    }

    /// Returns the reason if an item no longer matches the selectors.
    fn no_longer_selected(&self, item: &PlanItem, seen: &Observed) -> Option<String> {
        let selectors = self.conditions.selectors;
        let bound = item.binding == plan::Binding::Selected && !selectors.is_empty();
        let selected = selectors.iter().any(|selector| selector.fits(seen, self.now));
        (bound && !selected)
            .then(|| format!("it is {} now, it was {}", seen.state, item.seen.state))
    }

    /// Returns whether the record of a release has no event for this request, because an earlier
    /// request has one or the record stays quarantined. Its evidence is in a row of the audit.
    fn is_requested_again(&self, record: &Record) -> bool {
        self.conditions.is_second_try || record.state.name() == StateName::Releasing
    }

    /// Records the release of a tracked resource before it happens, with the id of an object that
    /// was found only now.
    async fn record_request(
        &self,
        item: &PlanItem,
        is_found: bool,
        why: &str,
    ) -> Result<(), ItemReport> {
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return Ok(()) };
        if self.conditions.is_second_try {
            return Ok(());
        }
        let event = Event::ReleaseRequested { why: why.into() };
        let found = is_found
            .then(|| Event::Found { object: item.seen.id.clone(), identity: item.seen.identity() });
        let events: Vec<_> =
            found.into_iter().chain([event.clone()]).map(|event| (resource, event)).collect();
        match ledger.append(&events).await {
            Ok(_) => Ok(()),
            // It may be what fills the disk. Its record is written once it is gone.
            Err(error) if error.is_disk_full() && self.providers.is_local(item.seen.provider) => {
                warn!(%resource, %error, "released before it could be recorded");
                self.audit.defer(resource, event);
                Ok(())
            }
            Err(LedgerError::Illegal { .. }) => {
                let reason = "another process released it".to_owned();
                Err(ItemReport::new(item, Outcome::Gone, Some(reason)))
            }
            Err(error) => Err(ItemReport::untried(item, &error)),
        }
    }

    async fn release_seen(
        &self,
        target: Target<'_>,
        seen: &Observed,
        authorization: &Authorization,
    ) -> ItemReport {
        let Target { item, provider, .. } = target;
        let mode = ReleaseMode {
            stop_timeout: self.options.stop_timeout.filter(|_| seen.is_running()),
            // The engine itself rejects the release if a stopped object runs again by then.
            kill_running: item.binding == plan::Binding::Identity || seen.is_running(),
            expected: authorization.expected.clone(),
        };
        let dependents =
            self.announce_dependents(&**provider, item, seen, &authorization.evidence).await;
        let tried = self.release_and_verify(target, &mode, authorization).await;
        match tried.result {
            Ok(Reached::Gone) => {
                self.note_dependents(&**provider, dependents).await;
                crashpoint::reach(Crashpoint::VerifiedNotClosed);
                self.close(item, tried.tries, None).await
            }
            Ok(Reached::Accepted) => {
                let report = accepted(item, tried.tries, UNFINISHED.to_owned());
                self.note_accepted(item, report).await
            }
            Ok(Reached::Retained(retention)) => {
                self.report_retained(item, tried.tries, retention).await
            }
            Ok(Reached::Stuck(detail)) => {
                let reason = format!("{UNFINISHED}: {detail}");
                let report = accepted(item, tried.tries, reason.clone());
                let report = self.note_accepted(item, report).await;
                // Another request would change nothing. The record must show that the object still
                // exists.
                self.quarantine(item, report, reason).await
            }
            Ok(Reached::Replaced(why)) => self.spare_replacement(item, tried.tries, why).await,
            Ok(Reached::Unproven(why)) => self.keep_unproven(item, tried.tries, why).await,
            Err(error) => match self.reason_to_stay(provider, item, &error).await {
                Some(report) => report,
                None => self.give_up(item, &error, tried.tries).await,
            },
        }
    }

    /// Returns a report for an object in use that has changed, because the plan no longer covers
    /// it.
    async fn reason_to_stay(
        &self,
        provider: &Arc<dyn Provider>,
        item: &PlanItem,
        error: &ProviderError,
    ) -> Option<ItemReport> {
        if item.resource.is_some() || error.class != ErrorClass::InUse {
            return None;
        }
        match self.recheck(Arc::clone(provider), item, None).await {
            Ok(Recheck::Protected(why)) => Some(ItemReport::protected(item, why)),
            Ok(Recheck::Drifted(why) | Recheck::Replaced(why) | Recheck::Unproven(why)) => {
                Some(ItemReport::new(item, Outcome::Drifted, Some(why)))
            }
            Ok(Recheck::Go(..) | Recheck::Absent) | Err(_) => None,
        }
    }

    /// Leaves a replacement alone.
    ///
    /// For a tracked object, the recorded object is gone, and its record states the evidence. An
    /// untracked object is reported as changed since it was selected.
    async fn spare_replacement(&self, item: &PlanItem, tries: u32, why: String) -> ItemReport {
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else {
            return ItemReport { tries, ..ItemReport::new(item, Outcome::Drifted, Some(why)) };
        };
        info!(%resource, id = %item.seen.id, why, "spared a replacement");
        if let Err(error) =
            ledger.append(&[(resource, Event::Replaced { why: why.as_str().into() })]).await
        {
            warn!(%resource, %error, "the record could not be closed");
        }
        let reason = format!("kept, it is not ours: {why}");
        ItemReport { tries, ..ItemReport::new(item, Outcome::Spared, Some(reason)) }
    }

    /// Keeps an object that may be foreign, and notes that on its record.
    async fn keep_unproven(&self, item: &PlanItem, tries: u32, why: String) -> ItemReport {
        let reason = format!("kept, nothing proves that it is ours: {why}");
        warn!(kind = %item.seen.kind, id = %item.seen.id, why, "kept without proof of ownership");
        let report =
            ItemReport { tries, ..ItemReport::new(item, Outcome::Spared, Some(reason.clone())) };
        self.quarantine(item, report, reason).await
    }

    /// Closes the record of an object whose absence is verified.
    async fn close(&self, item: &PlanItem, tries: u32, note: Option<String>) -> ItemReport {
        info!(kind = %item.seen.kind, id = %item.seen.id, name = %item.seen.name, "released");
        let gone = ItemReport { tries, ..ItemReport::new(item, Outcome::Gone, note) };
        self.forget_unfinished(item).await;
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return gone };
        if self.audit.has_deferred(resource) {
            self.audit.defer(resource, Event::VerifiedGone);
            return gone;
        }
        match ledger.append(&[(resource, Event::VerifiedGone)]).await {
            Ok(_) => gone,
            Err(error) if error.is_disk_full() => {
                self.audit.defer(resource, Event::VerifiedGone);
                gone
            }
            // The object is gone anyway; the next reconcile closes the record.
            Err(error) => {
                warn!(%resource, %error, "the record could not be closed");
                gone
            }
        }
    }

    /// Records why an object cannot be removed.
    async fn give_up(&self, item: &PlanItem, error: &ProviderError, tries: u32) -> ItemReport {
        error!(
            kind = %item.seen.kind, id = %item.seen.id, name = %item.seen.name,
            "failed after {tries} tries: {error}"
        );
        let report = failed(item, error, tries);
        if error.class.may_pass() && !self.conditions.is_second_try {
            // It stays in `Releasing`, for the next round to retry.
            return report;
        }
        self.quarantine(item, report, error.message.clone()).await
    }

    /// Quarantines the record of a tracked resource. An untracked object is only reported.
    pub(super) async fn quarantine(
        &self,
        item: &PlanItem,
        report: ItemReport,
        reason: String,
    ) -> ItemReport {
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return report };
        match ledger.append(&[(resource, Event::Quarantined { reason: reason.into() })]).await {
            Ok(_) => ItemReport { result: Outcome::Quarantined, ..report },
            Err(error) => {
                warn!(%resource, %error, "the quarantine could not be recorded");
                report
            }
        }
    }

    /// Retries one call as the policy says, and records each failed attempt.
    ///
    /// The call gets the provider with the permit and the deadline of this operation.
    pub(super) async fn with_retry<'b, T: Send + 'b, F>(
        &self,
        target: Target<'_>,
        operation: &'static str,
        mut call: impl FnMut(Arc<dyn Provider>) -> F,
    ) -> Tried<T>
    where
        F: Future<Output = Result<T, ProviderError>> + Send + 'b,
    {
        let Target { item, provider, permit } = target;
        let mut policy = self.options.retry.clone();
        policy.deadline += self.options.stop_timeout.unwrap_or_default();
        if operation == RELEASE {
            policy.deadline += provider.release_allowance(item.seen.kind);
        }
        let retries = policy.retries;
        let mut failures: Vec<Try> = Vec::new();
        let note = |attempt: u32, error: &ProviderError, wait: Option<Duration>| {
            failures.push(try_of(item, operation, attempt, error.class.name(), &error.message));
            if let Some(wait) = wait {
                warn!(
                    kind = %item.seen.kind, id = %item.seen.id,
                    "attempt {attempt}/{retries} failed: {error}; retrying in {}",
                    duration::show(wait)
                );
            } else {
                debug!(kind = %item.seen.kind, id = %item.seen.id, %error, "gave up");
            }
        };
        let timeout = || ProviderError {
            provider: item.seen.provider,
            operation: format!("{operation} {} {}", item.seen.kind, item.seen.name),
            message: format!("no answer within {}", duration::show(policy.deadline)),
            class: ErrorClass::Unreachable,
            retry_after: None,
        };
        let attempt = |deadline| {
            Box::pin(call(Arc::clone(provider).within(permit.clone(), deadline)))
                as BoxFuture<'b, _>
        };
        let tried = policy.run(attempt, note, timeout).await;
        // A release writes its own rows, one for each request that was sent.
        if operation != RELEASE {
            failures.into_iter().for_each(|failure| self.audit.note(failure));
        }
        tried
    }
}

/// Judges an object of a create whose response never arrived.
///
/// The object is ours only if it is the single one that has the name and the label of the create,
/// and did not inherit the label.
async fn claim(
    provider: &dyn Provider,
    item: &PlanItem,
    record: &Record,
    seen: Observed,
) -> Result<Recheck, ProviderError> {
    let found = provider.find(&record.marks()).await?;
    Ok(match found.as_slice() {
        [one] if one.id == seen.id => {
            let evidence = "it alone has the name and the label of the create";
            let authorization = Authorization::of_ours(item, record, &seen, evidence);
            Recheck::Go(seen, authorization)
        }
        [] | [_] => Recheck::Unproven("it is not what came of the create on record".to_owned()),
        [_, _, ..] => Recheck::Unproven(
            "several objects have the name and the label of the create".to_owned(),
        ),
    })
}

fn accepted(item: &PlanItem, tries: u32, reason: String) -> ItemReport {
    ItemReport { tries, ..ItemReport::new(item, Outcome::Accepted, Some(reason)) }
}

fn failed(item: &PlanItem, error: &ProviderError, tries: u32) -> ItemReport {
    ItemReport {
        tries,
        class: Some(error.class),
        ..ItemReport::new(item, Outcome::Failed, Some(error.message.clone()))
    }
}

/// Returns the row of a release that may be requested, with what allows it.
pub(super) fn planned(item: &PlanItem, evidence: &str) -> Try {
    Try { evidence: Some(evidence.into()), ..try_of(item, RELEASE, 0, "planned", "") }
}

pub(super) fn try_of(
    item: &PlanItem,
    operation: &str,
    attempt: u32,
    outcome: &str,
    detail: &str,
) -> Try {
    Try {
        at_ms: Timestamp::now().as_millisecond(),
        resource: item.resource,
        provider: item.seen.provider,
        kind: item.seen.kind,
        object: item.seen.id.clone(),
        name: Some(item.seen.name.as_str().into()),
        operation: operation.into(),
        attempt,
        outcome: outcome.into(),
        detail: detail.into(),
        evidence: None,
    }
}
