//! Reconcile: makes ledger and world agree again, whatever was interrupted.
//!
//! A round takes no input. It reads the ledger and the world, compares, acts,
//! and returns a status; the next round is the retry. Run twice in a row, the
//! second round changes nothing.
//!
//! - *ledger to world* ([`decide`]): records whose owner is dead, or whose
//!   lease ended, are released; interrupted releases are finished; unanswered
//!   creates are searched for until their window has passed. What is
//!   quarantined is tried once more by every full round: the obstacle may have
//!   gone since.
//! - *world to ledger*: objects that carry this ledger's label without an open
//!   record are put on record and released.
//! - *runs* whose driver died are closed with a named cause, once all they took
//!   is accounted for.
//!
//! A record is taken over by compare-and-swap of its owner before anything is
//! done with it, so two reconcilers at once share the work instead of doing it
//! twice. One about which nothing can be done yet is not taken over.

mod decide;
mod finish;
mod full_disk;
mod intent;
#[cfg(test)]
mod interleavings;
mod quarantine;
mod recover;
mod runs;
mod steps;
mod unfinished;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde::Serialize;

use crate::clock::Clock;
use crate::id::{ResourceId, RunId};
use crate::ledger::{
    self, Ledger, LedgerError, OwnerRecord, Record, RecordFilter, StateName, UnfinishedDelete,
};
use crate::owner::Owner;
use crate::provider::{ErrorClass, Observed, ProviderError, ProviderName, Providers};
use crate::reap::{ItemReport, Outcome, ReapOptions, Reaper, Report};

pub use decide::{Decision, decide};
use finish::Search;
pub use intent::WaitingCreate;

/// What one round did.
#[derive(Debug, Default, Serialize)]
#[must_use]
pub struct Status {
    /// Open records that were looked at.
    pub examined: usize,
    /// Records left alone: their owner lives, or their lease runs.
    pub kept: usize,
    /// Records that will not go; the next full round tries them again.
    pub quarantined: usize,
    /// Records that were quarantined, and whose object has gone now.
    pub left_quarantine: usize,
    /// Unanswered creates that may still land.
    pub open_intents: usize,
    /// The same, one by one.
    pub waiting: Vec<WaitingCreate>,
    /// Unanswered creates of which nothing came within their window.
    pub closed_intents: usize,
    /// Resources found absent without our doing.
    pub lost: usize,
    /// Leases that a clock jump would have ended, granted again.
    pub granted_leases: usize,
    /// Objects of ours that no open record knew.
    pub recovered: usize,
    /// Deletes that were accepted, had not finished, and have finished since.
    pub converged: usize,
    /// Deletes that were accepted and have not finished.
    pub unfinished: Vec<UnfinishedDelete>,
    /// How many of those should have finished by now.
    pub overdue: usize,
    /// Runs whose driver died, and which were closed.
    pub runs_closed: usize,
    /// Runs whose driver died, and which could not be closed yet.
    pub runs_waiting: usize,
    /// What was released, and what came of it.
    pub items: Vec<ItemReport>,
    /// Providers that could not be asked.
    pub unreachable: Vec<Unreachable>,
    /// How many changes could not be written to the ledger: the disk is full.
    #[serde(skip_serializing_if = "is_zero")]
    pub audit_incomplete: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A provider that could not be asked.
#[derive(Debug, Clone, Serialize)]
pub struct Unreachable {
    /// Which one.
    pub provider: ProviderName,
    /// What it said, or did not.
    pub error: String,
}

impl Status {
    /// Returns whether nothing is left unverified: every provider answered, every release
    /// succeeded, no create may land late, and no run waits to be closed.
    pub fn is_settled(&self) -> bool {
        self.unreachable.is_empty()
            && self.open_intents == 0
            && self.runs_waiting == 0
            && self.overdue == 0
            && self.audit_incomplete == 0
            && self.items.iter().all(ItemReport::is_settled)
    }

    /// Returns whether something is still there, quarantined, or overdue at its provider.
    pub fn is_left(&self) -> bool {
        self.quarantined > 0 || self.overdue > 0 || !self.items.iter().all(ItemReport::is_settled)
    }

    /// Returns whether another round could achieve nothing more: nothing may land late, all
    /// providers answered, and no release failed for a reason that passes.
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

/// Open records, by what is to be done about them.
#[derive(Debug, Default)]
struct Sorted {
    /// Left to their owners.
    kept: Vec<Record>,
    /// To be taken over and released.
    due: Vec<Record>,
    /// Quarantined by an owner that lives, or may live.
    stuck: Vec<Record>,
    /// Quarantined, and tried again by a full round.
    retried: Vec<Record>,
}

/// Makes one ledger agree with its worlds.
#[derive(Debug)]
pub struct Reconciler {
    ledger: Ledger,
    providers: Providers,
    /// This process, which takes over what nobody else answers for.
    me: OwnerRecord,
    /// How long an unanswered create is searched for.
    intent_window: Duration,
    /// How things are released.
    options: ReapOptions,
    clock: Arc<dyn Clock>,
}

impl Reconciler {
    /// Makes a reconciler that acts as this process.
    pub fn new(ledger: Ledger, providers: Providers, me: OwnerRecord) -> Self {
        let clock = Arc::clone(ledger.clock());
        Self {
            ledger,
            providers,
            me,
            intent_window: Duration::from_secs(600),
            options: ReapOptions::default(),
            clock,
        }
    }

    /// Sets how long an unanswered create is searched for.
    #[must_use]
    pub fn with_intent_window(mut self, window: Duration) -> Self {
        self.intent_window = window;
        self
    }

    /// Sets how things are released.
    #[must_use]
    pub fn with_options(mut self, options: ReapOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns how long an unanswered create is searched for.
    pub fn intent_window(&self) -> Duration {
        self.intent_window
    }

    /// Runs one full round over all records and all worlds.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used; providers that cannot be asked are in the status.
    pub async fn round(&self) -> Result<Status, LedgerError> {
        let mut status = self.new_status();
        let open = self.ledger.records(&RecordFilter::open()).await?;
        let quarantined = open.iter().filter(|record| is_quarantined(record));
        let quarantined: HashSet<ResourceId> = quarantined.map(|record| record.id).collect();
        let sorted = self.sort(open, &mut status).await?;
        self.settle(sorted.due, &mut status).await?;
        let stuck = self.look_at_stuck(sorted.stuck, &mut status).await;
        status.tolerate_full(stuck)?;
        let retried = self.retry_quarantined(sorted.retried, &mut status).await;
        status.tolerate_full(retried)?;
        let inventory = self.inventory(&mut status).await;
        let lost = self.note_lost(&sorted.kept, &inventory, &mut status).await;
        status.tolerate_full(lost)?;
        let recovered = self.recover(&inventory, &mut status).await;
        status.tolerate_full(recovered)?;
        let closed = self.close_runs(None, &mut status).await;
        status.tolerate_full(closed)?;
        let revisited = self.revisit_unfinished(&quarantined, &mut status).await;
        status.tolerate_full(revisited)?;
        Ok(status)
    }

    /// Settles the open records without listing any world: what mutating commands do besides
    /// their own work.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used; providers that cannot be asked are in the status.
    pub async fn finish(&self) -> Result<Status, LedgerError> {
        let mut status = self.new_status();
        let open = self.ledger.records(&RecordFilter::open()).await?;
        let sorted = self.sort(open, &mut status).await?;
        self.settle(sorted.due, &mut status).await?;
        let closed = self.close_runs(None, &mut status).await;
        status.tolerate_full(closed)?;
        Ok(status)
    }

    /// Releases what a dead owner left and closes its runs, without looking at anything else.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn inherit(&self, dead: &Owner) -> Result<Status, LedgerError> {
        let mut status = self.new_status();
        let left = self.ledger.records(&RecordFilter::open().of(dead)).await?;
        let sorted = self.sort(left, &mut status).await?;
        // Taken over first, found or not: an heir stays until nothing can land any more.
        let mine = self.take_over_or_make_room(sorted.due, &mut status).await?;
        let mine = self.with_steps(mine, &mut status).await?;
        let released = self.release(mine, &mut status).await;
        status.tolerate_full(released)?;
        let closed = self.close_runs(Some(dead), &mut status).await;
        status.tolerate_full(closed)?;
        Ok(status)
    }

    /// Goes on with what this process took over before and could not finish.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn resume(&self) -> Result<Status, LedgerError> {
        self.give_back(&RecordFilter::open().of(&self.me.owner)).await
    }

    /// As [`Reconciler::resume`], for what this process holds for one run.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn resume_run(&self, run: RunId) -> Result<Status, LedgerError> {
        let mine = RecordFilter::open().of(&self.me.owner);
        self.give_back(&RecordFilter { run: Some(run), ..mine }).await
    }

    fn new_status(&self) -> Status {
        // Noted before anything is released: it says why drivers may have died.
        self.ledger.check_disk();
        Status::default()
    }

    async fn give_back(&self, wanted: &RecordFilter) -> Result<Status, LedgerError> {
        let mut status = Status::default();
        let mine = self.ledger.records(wanted).await?;
        status.examined = mine.len();
        let (stuck, mine): (Vec<_>, Vec<_>) = mine.into_iter().partition(is_quarantined);
        status.quarantined = stuck.len();
        let mine = self.with_steps(mine, &mut status).await?;
        let released = self.release(mine, &mut status).await;
        status.tolerate_full(released)?;
        let stuck = self.look_at_stuck(stuck, &mut status).await;
        status.tolerate_full(stuck)?;
        Ok(status)
    }

    /// Decides about records, one by one.
    async fn sort(&self, records: Vec<Record>, status: &mut Status) -> Result<Sorted, LedgerError> {
        status.examined += records.len();
        let (now, boot) = (self.clock.now(), &self.me.owner.boot);
        let mut sorted = Sorted::default();
        for record in records {
            match decide(&record, record.owner_liveness(), record.lease.status(now, boot)) {
                Decision::Keep => sorted.kept.push(record),
                Decision::Quarantined => sorted.stuck.push(record),
                Decision::Retry => sorted.retried.push(record),
                Decision::GrantLease => {
                    let event = ledger::Event::LeaseGranted { from: now };
                    let granted = self.ledger.append(&[(record.id, event)]).await;
                    status.tolerate_full(granted.map(drop))?;
                    status.granted_leases += 1;
                    sorted.kept.push(record);
                }
                Decision::Release => sorted.due.push(record),
            }
        }
        status.kept += sorted.kept.len();
        status.quarantined += sorted.stuck.len() + sorted.retried.len();
        Ok(sorted)
    }

    /// Gives back what nobody answers for.
    ///
    /// A record is taken over only when something is to be done about it: one that waits for a
    /// late create, or for a provider that does not answer, stays as it is, so that a round
    /// that achieves nothing writes nothing.
    async fn settle(&self, due: Vec<Record>, status: &mut Status) -> Result<(), LedgerError> {
        let (waiting, ready): (Vec<_>, Vec<_>) = self
            .search_all(due, status)
            .await
            .into_iter()
            .partition(|(_, found)| matches!(found, Search::NothingYet(..)));
        for (record, found) in waiting {
            if let Search::NothingYet(landing, doubtful) = found {
                let noted = self.note_waiting(&record, landing, status).await;
                status.tolerate_full(noted)?;
                status.spare_doubtful(&record, doubtful);
            }
        }
        let (records, mut found): (Vec<_>, HashMap<_, _>) =
            ready.into_iter().map(|(record, found)| (record.clone(), (record.id, found))).unzip();
        let mine = self.take_over_or_make_room(records, status).await?;
        let mine = mine.into_iter().filter_map(|record| {
            let found = found.remove(&record.id)?;
            Some((record, found))
        });
        let mine: Vec<_> = mine.collect();
        let known = mine.iter().map(|(record, _)| record.clone()).collect();
        let steps = self.with_steps(known, status).await?.split_off(mine.len());
        // What is built upon an image keeps it from going.
        let released = self.release(steps, status).await;
        status.tolerate_full(released)?;
        let acted = self.act_on(mine, status).await;
        status.tolerate_full(acted)
    }

    /// Becomes the owner of records, where nobody else was quicker.
    async fn take_over(&self, mut due: Vec<Record>) -> Result<Vec<Record>, LedgerError> {
        let mut taken = Vec::new();
        while let Some(owner) = due.first().map(|record| record.owner.owner.clone()) {
            let (same, rest): (Vec<_>, Vec<_>) =
                due.into_iter().partition(|record| record.owner.owner == owner);
            due = rest;
            let ids: Vec<_> = same.iter().map(|record| record.id).collect();
            taken.extend(self.ledger.take_over(&ids, &owner, &self.me).await?);
        }
        Ok(taken)
    }

    /// Lists every world; one that cannot be asked is noted and left out.
    async fn inventory(&self, status: &mut Status) -> Vec<Observed> {
        let lists = self.providers.iter().map(|provider| provider.list(provider.kinds()));
        let mut inventory = Vec::new();
        for listed in join_all(lists).await {
            match listed {
                Ok(seen) => inventory.extend(seen),
                Err(error) => status.note_unreachable(&error),
            }
        }
        inventory
    }

    fn reaper(&self) -> Reaper {
        Reaper::new(self.providers.clone(), Some(self.ledger.clone()))
    }
}
