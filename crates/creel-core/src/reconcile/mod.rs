//! Reconcile: makes the ledger and the providers agree again, whatever was interrupted.
//!
//! A round takes no input. It reads the ledger and the providers, compares, acts, and returns a
//! status; the next round is the retry. Of two rounds in a row, the second changes nothing.
//!
//! - *ledger to providers* ([`decide`]): records whose owner is dead, or whose lease expired, are
//!   released. Interrupted releases are finished. Unanswered creates are searched for until their
//!   window has passed. Every full round retries quarantined records once, because the obstacle
//!   may be gone.
//! - *providers to ledger*: objects that carry this ledger's label without an open record are put
//!   on record and released.
//! - *runs* whose driver died are closed with a named cause, once all their resources are accounted
//!   for. The run engine does that through [`RunCloser`].
//!
//! A record is taken over by compare-and-swap of its owner before anything is done with it.
//! Concurrent reconcilers therefore share the work instead of doing it twice. A record for which
//! nothing can be done yet is not taken over.

mod decide;
mod finish;
mod full_disk;
mod intent;
#[cfg(test)]
mod interleavings;
mod quarantine;
mod recover;
mod run_closer;
mod steps;
mod unfinished;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use creel_ledger as ledger;
use creel_ledger::{
    Ledger, LedgerError, OwnerRecord, Record, RecordFilter, StateName, UnfinishedDelete,
};
use creel_model::clock::Clock;
use creel_model::id::{ResourceId, RunId};
use creel_model::owner::Owner;
use creel_model::provider::{ErrorClass, Observed, ProviderError, ProviderName, Providers};
use serde::Serialize;

use crate::pipeline::{Listing, Pipeline};
use crate::reap::{ItemReport, Outcome, ReapOptions, Report};

pub use decide::{Decision, decide};
use finish::SearchResult;
pub use intent::WaitingCreate;
pub use run_closer::RunCloser;

/// The pause between two checks whether a full disk has room again.
const SPACE_CHECK_PAUSE: Duration = Duration::from_secs(2);

/// Records per transaction when taking over. A whole transaction is in the ledger's write-ahead log
/// at once, which must fit in the reserved space on a full disk.
const TAKE_OVER_BATCH: usize = 64;

/// The result of one round.
#[derive(Debug, Default, Serialize)]
#[must_use]
pub struct Status {
    /// Open records that were examined.
    pub examined: usize,
    /// Records left alone, because their owner lives or their lease runs.
    pub kept: usize,
    /// Records that cannot be removed; the next full round retries them.
    pub quarantined: usize,
    /// Records that were quarantined, and whose object is now gone.
    pub left_quarantine: usize,
    /// Unanswered creates that may still complete.
    pub open_intents: usize,
    /// The details of each of these creates.
    pub waiting: Vec<WaitingCreate>,
    /// Unanswered creates that made no object within their window.
    pub closed_intents: usize,
    /// Resources found absent although we did not release them.
    pub lost: usize,
    /// Leases that a clock jump would have ended, and that were granted again.
    pub granted_leases: usize,
    /// Our objects that had no open record.
    pub recovered: usize,
    /// Accepted deletes that were unfinished and have finished since.
    pub converged: usize,
    /// Accepted deletes that have not finished.
    pub unfinished: Vec<UnfinishedDelete>,
    /// How many of those should have finished by now.
    pub overdue: usize,
    /// Runs whose driver died, and that were closed.
    pub runs_closed: usize,
    /// Runs whose driver died, and that could not be closed yet.
    pub runs_waiting: usize,
    /// The released items and their outcomes.
    pub items: Vec<ItemReport>,
    /// Providers that could not be reached.
    pub unreachable: Vec<Unreachable>,
    /// How many changes could not be written to the ledger, because the disk is full.
    #[serde(skip_serializing_if = "is_zero")]
    pub audit_incomplete: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A provider that could not be reached.
#[derive(Debug, Clone, Serialize)]
pub struct Unreachable {
    /// The provider.
    pub provider: ProviderName,
    /// The provider's error.
    pub error: String,
}

impl Status {
    /// Returns whether nothing is left unverified.
    ///
    /// That means: every provider responded, every release succeeded, no create may complete late,
    /// and no run waits to be closed.
    pub fn is_settled(&self) -> bool {
        self.unreachable.is_empty()
            && self.open_intents == 0
            && self.runs_waiting == 0
            && self.overdue == 0
            && self.audit_incomplete == 0
            && self.items.iter().all(ItemReport::is_settled)
    }

    /// Returns whether something is unreleased, quarantined, or overdue at its provider.
    pub fn is_left(&self) -> bool {
        self.quarantined > 0 || self.overdue > 0 || !self.items.iter().all(ItemReport::is_settled)
    }

    /// Returns whether another round could achieve nothing more.
    ///
    /// That means: nothing may complete late, all providers responded, and no release failed for a
    /// temporary reason.
    pub fn is_final(&self) -> bool {
        let may_pass = |item: &ItemReport| item.class.is_some_and(ErrorClass::may_pass);
        self.open_intents == 0
            && self.recovered == 0
            && self.audit_incomplete == 0
            && self.unreachable.is_empty()
            && !self.items.iter().any(|item| item.result == Outcome::Failed && may_pass(item))
    }

    /// Returns how many resources were released.
    pub fn released(&self) -> usize {
        self.items.iter().filter(|item| item.result == Outcome::Gone).count()
    }

    fn note_unreachable(&mut self, error: &ProviderError) {
        let known = self.unreachable.iter().any(|known| known.provider == error.provider);
        if !known {
            let error = Unreachable { provider: error.provider, error: error.to_string() };
            self.unreachable.push(error);
        }
    }

    fn add(&mut self, report: Report) {
        self.items.extend(report.items);
        self.audit_incomplete += report.audit_incomplete;
    }
}

fn is_quarantined(record: &Record) -> bool {
    record.state.name() == StateName::Quarantined
}

/// Open records, grouped by decision.
#[derive(Debug, Default)]
struct TriagedRecords {
    /// Records left to their owners.
    kept: Vec<Record>,
    /// Records to take over and release.
    due: Vec<Record>,
    /// Quarantined records whose owner is alive, or may be.
    stuck: Vec<Record>,
    /// Quarantined records that a full round retries.
    retried: Vec<Record>,
}

/// Makes one ledger agree with its providers.
#[derive(Debug)]
pub struct Reconciler {
    ledger: Ledger,
    providers: Providers,
    /// This process, which takes over records without a responsible owner.
    me: OwnerRecord,
    /// How long an unanswered create is searched for.
    intent_window: Duration,
    /// How resources are released.
    options: ReapOptions,
    /// Closes the runs of dead drivers.
    run_closer: Option<Arc<dyn RunCloser>>,
    clock: Arc<dyn Clock>,
}

impl Reconciler {
    /// Creates a reconciler that acts as this process.
    pub fn new(ledger: Ledger, providers: Providers, me: OwnerRecord) -> Self {
        let clock = Arc::clone(ledger.clock());
        Self {
            ledger,
            providers,
            me,
            intent_window: Duration::from_secs(600),
            options: ReapOptions::default(),
            run_closer: None,
            clock,
        }
    }

    /// Sets how long an unanswered create is searched for.
    #[must_use]
    pub fn with_intent_window(mut self, window: Duration) -> Self {
        self.intent_window = window;
        self
    }

    /// Sets how resources are released.
    #[must_use]
    pub fn with_options(mut self, options: ReapOptions) -> Self {
        self.options = options;
        self
    }

    /// Also closes the runs of dead drivers.
    #[must_use]
    pub fn with_run_closer(mut self, closer: Arc<dyn RunCloser>) -> Self {
        self.run_closer = Some(closer);
        self
    }

    /// Returns how long an unanswered create is searched for.
    pub fn intent_window(&self) -> Duration {
        self.intent_window
    }

    /// Runs one full round over all records and all providers.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used. Unreachable providers are in the status.
    pub async fn round(&self) -> Result<Status, LedgerError> {
        let mut status = self.new_status();
        let open = self.ledger.records(&RecordFilter::open()).await?;
        let quarantined = open.iter().filter(|record| is_quarantined(record));
        let quarantined: HashSet<ResourceId> = quarantined.map(|record| record.id).collect();
        let triaged = self.triage(open, &mut status).await?;
        self.release_due(triaged.due, &mut status).await?;
        let stuck = self.close_absent_quarantined(triaged.stuck, &mut status).await;
        status.tolerate_full(stuck)?;
        let retried = self.retry_quarantined(triaged.retried, &mut status).await;
        status.tolerate_full(retried)?;
        let inventory = self.inventory(&mut status).await;
        let lost = self.note_lost(&triaged.kept, &inventory, &mut status).await;
        status.tolerate_full(lost)?;
        let recovered = self.recover(&inventory, &mut status).await;
        status.tolerate_full(recovered)?;
        self.close_runs(None, &mut status).await?;
        let revisited = self.revisit_unfinished(&quarantined, &mut status).await;
        status.tolerate_full(revisited)?;
        Ok(status)
    }

    /// Handles the open records without listing the objects of any provider.
    ///
    /// Mutating commands do this besides their own work.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used. Unreachable providers are in the status.
    pub async fn finish(&self) -> Result<Status, LedgerError> {
        let mut status = self.new_status();
        let open = self.ledger.records(&RecordFilter::open()).await?;
        let triaged = self.triage(open, &mut status).await?;
        self.release_due(triaged.due, &mut status).await?;
        self.close_runs(None, &mut status).await?;
        Ok(status)
    }

    /// Releases what a dead owner left and closes its runs, and examines nothing else.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn inherit(&self, dead: &Owner) -> Result<Status, LedgerError> {
        let mut status = self.new_status();
        self.inherit_into(dead, &mut status).await?;
        Ok(status)
    }

    /// Continues with the resources of a dead owner: those that this process took over earlier and
    /// could not finish, and those that it could not take over because the disk was full.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn continue_inheriting(&self, dead: &Owner) -> Result<Status, LedgerError> {
        let mut status = self.resume().await?;
        self.inherit_into(dead, &mut status).await?;
        Ok(status)
    }

    async fn inherit_into(&self, dead: &Owner, status: &mut Status) -> Result<(), LedgerError> {
        let left = self.ledger.records(&RecordFilter::open().of(dead)).await?;
        let triaged = self.triage(left, status).await?;
        // Take over first, found or not: an heir stays until no create can complete any more.
        let mine = self.take_over_or_free_space(triaged.due, status).await?;
        let mine = self.with_steps(mine, status).await?;
        let released = self.release(mine, status).await;
        status.tolerate_full(released)?;
        self.close_runs(Some(dead), status).await
    }

    /// Waits until the disk of the ledger has room.
    pub async fn wait_for_space(&self) {
        while self.ledger.check_disk() {
            tokio::time::sleep(SPACE_CHECK_PAUSE).await;
        }
    }

    /// Writes the entries of the audit for which there was no space before.
    pub async fn write_deferred_tries(&self) {
        self.ledger.write_deferred_tries().await;
    }

    /// Returns whether the ledger has to be opened again before anything can be recorded.
    pub fn needs_reopening(&self) -> bool {
        self.ledger.is_unwritable()
    }

    /// Continues with what this process took over earlier and could not finish.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn resume(&self) -> Result<Status, LedgerError> {
        self.release_matching(&RecordFilter::open().of(&self.me.owner)).await
    }

    /// Like [`Reconciler::resume`], for what this process holds for one run.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn resume_run(&self, run: RunId) -> Result<Status, LedgerError> {
        let mine = RecordFilter::open().of(&self.me.owner);
        self.release_matching(&RecordFilter { run: Some(run), ..mine }).await
    }

    fn new_status(&self) -> Status {
        // Check this before any release: a full disk explains why drivers may have died.
        self.ledger.check_disk();
        Status::default()
    }

    async fn release_matching(&self, filter: &RecordFilter) -> Result<Status, LedgerError> {
        let mut status = Status::default();
        let mine = self.ledger.records(filter).await?;
        status.examined = mine.len();
        let (stuck, mine): (Vec<_>, Vec<_>) = mine.into_iter().partition(is_quarantined);
        status.quarantined = stuck.len();
        let mine = self.with_steps(mine, &mut status).await?;
        let released = self.release(mine, &mut status).await;
        status.tolerate_full(released)?;
        let stuck = self.close_absent_quarantined(stuck, &mut status).await;
        status.tolerate_full(stuck)?;
        Ok(status)
    }

    /// Decides about each record.
    async fn triage(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Result<TriagedRecords, LedgerError> {
        status.examined += records.len();
        let (now, boot) = (self.clock.now(), &self.me.owner.boot);
        let mut triaged = TriagedRecords::default();
        for record in records {
            match decide(&record, record.owner_liveness(), record.lease.status(now, boot)) {
                Decision::Keep => triaged.kept.push(record),
                Decision::Quarantined => triaged.stuck.push(record),
                Decision::Retry => triaged.retried.push(record),
                Decision::GrantLease => {
                    let event = ledger::Event::LeaseGranted { from: now };
                    let granted = self.ledger.append(&[(record.id, event)]).await;
                    status.tolerate_full(granted.map(drop))?;
                    status.granted_leases += 1;
                    triaged.kept.push(record);
                }
                Decision::Release => triaged.due.push(record),
            }
        }
        status.kept += triaged.kept.len();
        status.quarantined += triaged.stuck.len() + triaged.retried.len();
        Ok(triaged)
    }

    /// Releases records that have no responsible owner.
    ///
    /// A record is taken over only when there is something to do. One that waits for a late create,
    /// or for an unresponsive provider, stays unchanged. A round that achieves nothing therefore
    /// writes nothing.
    async fn release_due(&self, due: Vec<Record>, status: &mut Status) -> Result<(), LedgerError> {
        let (waiting, ready): (Vec<_>, Vec<_>) = self
            .search_all(due, status)
            .await
            .into_iter()
            .partition(|(_, found)| matches!(found, SearchResult::Pending(..)));
        for (record, found) in waiting {
            if let SearchResult::Pending(late_create, doubtful) = found {
                let noted = self.note_waiting(&record, late_create, status).await;
                status.tolerate_full(noted)?;
                status.report_doubtful(&record, doubtful);
            }
        }
        let (records, mut found): (Vec<_>, HashMap<_, _>) =
            ready.into_iter().map(|(record, found)| (record.clone(), (record.id, found))).unzip();
        let mine = self.take_over_or_free_space(records, status).await?;
        let mine = mine.into_iter().filter_map(|record| {
            let found = found.remove(&record.id)?;
            Some((record, found))
        });
        let mine: Vec<_> = mine.collect();
        let known = mine.iter().map(|(record, _)| record.clone()).collect();
        let steps = self.with_steps(known, status).await?.split_off(mine.len());
        // An image cannot be removed while another image is built on it.
        let released = self.release(steps, status).await;
        status.tolerate_full(released)?;
        let acted = self.act_on(mine, status).await;
        status.tolerate_full(acted)
    }

    /// Takes ownership of records, unless another process was faster.
    ///
    /// Adds them to `taken`, even if it fails in the middle.
    async fn take_over(
        &self,
        mut due: Vec<Record>,
        taken: &mut Vec<Record>,
    ) -> Result<(), LedgerError> {
        while let Some(owner) = due.first().map(|record| record.owner.owner.clone()) {
            let (same, rest): (Vec<_>, Vec<_>) =
                due.into_iter().partition(|record| record.owner.owner == owner);
            due = rest;
            let ids: Vec<_> = same.iter().map(|record| record.id).collect();
            for ids in ids.chunks(TAKE_OVER_BATCH) {
                taken.extend(self.ledger.take_over(ids, &owner, &self.me).await?);
            }
        }
        Ok(())
    }

    /// Lists the objects of every provider. Unreachable providers are noted and left out.
    async fn inventory(&self, status: &mut Status) -> Vec<Observed> {
        let listing = Listing::read(&self.providers, &[]).await;
        listing.unreachable.iter().for_each(|error| status.note_unreachable(error));
        listing.inventory
    }

    fn pipeline(&self) -> Pipeline {
        Pipeline::new(self.providers.clone(), Some(self.ledger.clone()))
            .with_options(self.options.clone())
    }
}
