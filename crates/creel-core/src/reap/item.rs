//! One item: look again, record, release, verify, close.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{debug, error, info, warn};

use crate::crashpoint::{self, Crashpoint};
use crate::duration;
use crate::ledger::write::WhenFull;
use crate::ledger::{Event, Ledger, LedgerError, Record, Try};
use crate::plan::{self, PlanItem};
use crate::provider::{ErrorClass, Observed, Provider, ProviderError, Providers, ReleaseMode};
use crate::retry::Tried;
use crate::select::protection;

use super::audit::Audit;
use super::send::RELEASE;
use super::unfinished::Unfinished;
use super::warrant::{Permission, Warrant, judge};
use super::watch::Reached;
use super::{ItemReport, Outcome, ReapOptions};

/// How long a look is as good as new, where the provider refuses what changed since.
const FRESH: Duration = Duration::from_secs(1);
/// Said of an object whose end was ordered and taken, and which is still there.
const UNFINISHED: &str = "its removal was accepted but is not finished";

/// What all items of one plan share.
pub(super) struct Job<'a> {
    pub(super) providers: &'a Providers,
    pub(super) ledger: Option<&'a Ledger>,
    pub(super) options: &'a ReapOptions,
    pub(super) audit: &'a Audit,
    /// The ids that this plan releases.
    pub(super) leaving: HashSet<&'a str>,
    /// The deletes that were accepted before and did not finish.
    pub(super) unfinished: Unfinished,
    pub(super) now: Timestamp,
}

/// What a second look before the release showed.
enum SecondLook {
    /// It may go.
    Go(Observed, Warrant),
    /// It is absent already.
    Absent,
    /// It must stay.
    Stay(Outcome, String),
    /// Another object has its name.
    Replaced(String),
    /// Nothing proves that it is the recorded one.
    Unproven(String),
}

impl Job<'_> {
    /// Releases one item; never fails, the report says what came of it.
    pub(super) async fn release(&self, item: &PlanItem) -> ItemReport {
        let provider = match self.providers.get(item.seen.provider) {
            Ok(provider) => provider.as_ref(),
            Err(error) => return failed(item, &error, 0),
        };
        if self.was_seen_just_now(provider, item) {
            let warrant = Warrant::by_rule(item);
            return self.release_seen(provider, item, &item.seen, &warrant).await;
        }
        let record = match self.record_of(item).await {
            Ok(record) => record,
            Err(report) => return report,
        };
        let record = record.as_ref();
        let look =
            self.with_retry(item, "look at", || self.look_again(provider, item, record)).await;
        let allowed = match look.result {
            Ok(SecondLook::Go(seen, warrant)) => Some((seen, warrant)),
            Ok(SecondLook::Absent) => None,
            Ok(SecondLook::Stay(outcome, reason)) => {
                return ItemReport::new(item, outcome, Some(reason));
            }
            Ok(SecondLook::Replaced(why)) => return self.spare_replacement(item, 0, why).await,
            Ok(SecondLook::Unproven(why)) => return self.keep_unproven(item, 0, why).await,
            Err(error) => return failed(item, &error, look.tries),
        };
        let why = allowed.as_ref().map_or(&item.rule, |(_, warrant)| &warrant.evidence);
        if let Err(report) = self.record_request(item, why).await {
            return report;
        }
        match allowed {
            None => self.close(item, 0, Some("it was gone already".to_owned())).await,
            Some((seen, warrant)) => self.release_seen(provider, item, &seen, &warrant).await,
        }
    }

    /// Reads what is on record of an item right before its release.
    async fn record_of(&self, item: &PlanItem) -> Result<Option<Record>, ItemReport> {
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return Ok(None) };
        let untried = |reason| ItemReport::new(item, Outcome::Failed, Some(reason));
        match ledger.record(resource).await {
            Ok(Some(record)) => Ok(Some(record)),
            Ok(None) => Err(untried(format!("not tried: this ledger has no record {resource}"))),
            Err(error) => Err(untried(format!("not tried: {error}"))),
        }
    }

    /// Returns whether a second look would show nothing new. What is tracked is always looked
    /// at: its release is recorded first, and a change would come too late to take that back.
    fn was_seen_just_now(&self, provider: &dyn Provider, item: &PlanItem) -> bool {
        let is_fresh = self.options.seen_at.is_some_and(|at| at.elapsed() < FRESH);
        is_fresh
            && item.resource.is_none()
            && item.binding == plan::Binding::Selected
            && provider.refuses_if_changed(&item.seen)
    }

    async fn look_again(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        record: Option<&Record>,
    ) -> Result<SecondLook, ProviderError> {
        let (kind, id) = (item.seen.kind, item.seen.id.as_str());
        let look = match item.binding {
            plan::Binding::Examined => provider.examine(kind, id),
            plan::Binding::Selected | plan::Binding::Identity => provider.inspect(kind, id),
        };
        let Some(mut seen) = look.await? else { return Ok(SecondLook::Absent) };
        // Where the engine does not tell an image's age, what the plan knew of it still holds.
        seen.tagged_at = seen.tagged_at.or(item.seen.tagged_at);
        if let Some(reason) = protection(&self.options.protect, &seen, self.now) {
            return Ok(SecondLook::Stay(Outcome::Spared, reason));
        }
        let leaving = |user: &str| self.leaving.contains(user);
        let changed = plan::drift(item, &seen, leaving).or_else(|| self.unmeant(item, &seen));
        if let Some(reason) = changed {
            return Ok(SecondLook::Stay(Outcome::Drifted, reason));
        }
        if let Some(record) = record.filter(|record| record.state.object().is_none()) {
            return claim(provider, item, record, seen).await;
        }
        Ok(match judge(item, record, &seen) {
            Permission::Granted(warrant) => SecondLook::Go(seen, warrant),
            Permission::Replaced(why) => SecondLook::Replaced(why),
            Permission::Unproven(why) => SecondLook::Unproven(why),
        })
    }

    /// Says that an item no longer fits what was meant, if so.
    fn unmeant(&self, item: &PlanItem, seen: &Observed) -> Option<String> {
        let selectors = &self.options.selectors;
        let bound = item.binding == plan::Binding::Selected && !selectors.is_empty();
        let meant = selectors.iter().any(|selector| selector.fits(seen, self.now));
        (bound && !meant).then(|| format!("it is {} now, it was {}", seen.state, item.seen.state))
    }

    /// Records the release of a tracked resource before it happens.
    async fn record_request(&self, item: &PlanItem, why: &str) -> Result<(), ItemReport> {
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return Ok(()) };
        if self.options.is_second_try {
            return Ok(());
        }
        let event = Event::ReleaseRequested { why: why.into() };
        match ledger.append(&[(resource, event.clone())]).await {
            Ok(_) => Ok(()),
            // It may be what fills the disk: its record follows when it is gone.
            Err(error) if error.is_disk_full() && self.providers.is_local(item.seen.provider) => {
                warn!(%resource, %error, "released before it could be recorded");
                self.audit.owe(resource, event);
                Ok(())
            }
            Err(LedgerError::Illegal { .. }) => {
                let reason = "another process released it".to_owned();
                Err(ItemReport::new(item, Outcome::Gone, Some(reason)))
            }
            Err(error) => {
                let reason = format!("not tried: {error}");
                Err(ItemReport::new(item, Outcome::Failed, Some(reason)))
            }
        }
    }

    async fn release_seen(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        seen: &Observed,
        warrant: &Warrant,
    ) -> ItemReport {
        let mode = ReleaseMode {
            stop_timeout: self.options.stop_timeout.filter(|_| seen.is_running()),
            // The engine itself refuses when something seen at rest runs again meanwhile.
            kill_running: item.binding == plan::Binding::Identity || seen.is_running(),
            expected: warrant.expected.clone(),
            // Each step of a recorded build has a record of its own.
            keep_parents: item.resource.is_some(),
        };
        let tried = self.end(provider, item, &mode, warrant).await;
        match tried.result {
            Ok(Reached::Gone) => {
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
            Ok(Reached::Stuck(words)) => {
                let reason = format!("{UNFINISHED}: {words}");
                let report = accepted(item, tried.tries, reason.clone());
                let report = self.note_accepted(item, report).await;
                // Another order would change nothing: that it is there is what is to be known.
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

    /// Asks of something that was refused as in use whether it has changed: then nobody meant it.
    async fn reason_to_stay(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        error: &ProviderError,
    ) -> Option<ItemReport> {
        if item.resource.is_some() || error.class != ErrorClass::InUse {
            return None;
        }
        match self.look_again(provider, item, None).await {
            Ok(SecondLook::Stay(outcome, reason)) => {
                Some(ItemReport::new(item, outcome, Some(reason)))
            }
            Ok(SecondLook::Replaced(why) | SecondLook::Unproven(why)) => {
                Some(ItemReport::new(item, Outcome::Drifted, Some(why)))
            }
            Ok(SecondLook::Go(..) | SecondLook::Absent) | Err(_) => None,
        }
    }

    /// Leaves a replacement alone. The recorded object is gone, and its record says how that is
    /// known; something that nobody tracks has changed since it was selected.
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

    /// Keeps an object that may be somebody else's, and says so on its record.
    async fn keep_unproven(&self, item: &PlanItem, tries: u32, why: String) -> ItemReport {
        let reason = format!("kept, nothing proves that it is ours: {why}");
        warn!(kind = %item.seen.kind, id = %item.seen.id, why, "kept without proof of ownership");
        let report =
            ItemReport { tries, ..ItemReport::new(item, Outcome::Spared, Some(reason.clone())) };
        self.quarantine(item, report, reason).await
    }

    /// Closes the record of something whose absence is verified.
    async fn close(&self, item: &PlanItem, tries: u32, note: Option<String>) -> ItemReport {
        info!(kind = %item.seen.kind, id = %item.seen.id, name = %item.seen.name, "released");
        let gone = ItemReport { tries, ..ItemReport::new(item, Outcome::Gone, note) };
        self.forget_unfinished(item).await;
        let (Some(resource), Some(ledger)) = (item.resource, self.ledger) else { return gone };
        if self.audit.owes(resource) {
            self.audit.owe(resource, Event::VerifiedGone);
            return gone;
        }
        match ledger.append(&[(resource, Event::VerifiedGone)]).await {
            Ok(_) => gone,
            Err(error) if error.is_disk_full() => {
                self.audit.owe(resource, Event::VerifiedGone);
                gone
            }
            // The object is gone all the same; the next reconcile closes the record.
            Err(error) => {
                warn!(%resource, %error, "the record could not be closed");
                gone
            }
        }
    }

    /// Keeps on record why something will not go.
    async fn give_up(&self, item: &PlanItem, error: &ProviderError, tries: u32) -> ItemReport {
        error!(
            kind = %item.seen.kind, id = %item.seen.id, name = %item.seen.name,
            "failed after {tries} tries: {error}"
        );
        let report = failed(item, error, tries);
        if error.class.may_pass() && !self.options.is_second_try {
            // It stays in release, for the next round to try again.
            return report;
        }
        self.quarantine(item, report, error.message.clone()).await
    }

    /// Keeps a tracked resource on record as one that will not go; what nobody tracks is only
    /// reported.
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

    /// Tries one call again as the policy says, and notes each try.
    pub(super) async fn with_retry<'b, T: Send + 'b, F>(
        &self,
        item: &PlanItem,
        operation: &'static str,
        mut call: impl FnMut() -> F,
    ) -> Tried<T>
    where
        F: Future<Output = Result<T, ProviderError>> + Send + 'b,
    {
        let mut policy = self.options.retry.clone();
        policy.deadline += self.options.stop_timeout.unwrap_or_default();
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
        let tried = policy.run(|| Box::pin(call()), note, timeout).await;
        // A release writes its own rows, one for each request that was sent.
        if operation != RELEASE {
            failures.into_iter().for_each(|failure| self.audit.note(failure));
        }
        tried
    }
}

/// Judges an object of a create whose answer never came: only the one object that has its name
/// and its label, and did not inherit the label, came of it.
async fn claim(
    provider: &dyn Provider,
    item: &PlanItem,
    record: &Record,
    seen: Observed,
) -> Result<SecondLook, ProviderError> {
    let found = provider.find(&record.marks()).await?;
    Ok(match found.as_slice() {
        [one] if one.id == seen.id => {
            let evidence = "it alone has the name and the label of the create";
            let warrant = Warrant::of_ours(item, record, &seen, evidence);
            SecondLook::Go(seen, warrant)
        }
        [] | [_] => SecondLook::Unproven("it is not what came of the create on record".to_owned()),
        [_, _, ..] => SecondLook::Unproven(
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
