//! The end of a supervisor: everything that it holds is released, in rounds, and accounted for.
//!
//! A create whose response never came may land late, and an image cannot go before those that are
//! built on it. So the records are released again until nothing is left or can land late. An open
//! intent is unknown, not absent: after a few seconds it is left to the next reconcile, as
//! outstanding. A crash in the middle leaves the records to the watchdog.

use std::time::{Duration, Instant};

use creel_ledger::{LedgerError, OnOwnerDeath, Record, RecordFilter};
use creel_model::provider::{ErrorClass, Kind};

use crate::reap::{ItemReport, Outcome, Report};
use crate::reconcile::Unreachable;
use crate::scope::{Held, Supervisor};

/// How long to wait for creates without a response. After it they are left to the next reconcile.
const LATE: Duration = Duration::from_secs(5);
/// The first pause between two searches for them. Later pauses grow.
const PAUSE: Duration = Duration::from_millis(100);

/// What a supervisor releases at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TeardownScope {
    /// Everything that it holds.
    All,
    /// Only what its process itself needed; what is on hold stays, as requested.
    OwnOnly,
}

/// The outcome of a supervisor's end.
#[derive(Debug)]
#[must_use]
pub struct Teardown {
    /// What was released, with the outcome of each release.
    pub report: Report,
    /// The records that are still to be released.
    pub outstanding: Vec<Record>,
    /// The records that stay, as requested.
    pub kept: Vec<Record>,
    /// The records whose object a label or a rule protects.
    pub protected: Vec<Record>,
    /// Providers that could not be reached.
    pub unreachable: Vec<Unreachable>,
}

impl Supervisor {
    /// Releases what this process holds, and reports what is left.
    ///
    /// `held` are the handles of what the process itself needed.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used.
    pub async fn tear_down(
        &self,
        held: Vec<Held>,
        scope: TeardownScope,
    ) -> Result<Teardown, LedgerError> {
        let keeps = scope == TeardownScope::OwnOnly;
        let (mut report, mut unreachable) = (Report::default(), Vec::new());
        if keeps {
            for held in held {
                // A resource that is not gone stays on record, which is read below.
                report.items.extend(self.release(held).await.ok());
            }
        } else {
            held.into_iter().for_each(Held::forget);
            (report, unreachable) = self.release_until_final().await?;
        }
        let mine = RecordFilter::open().of(&self.owner().owner);
        let mut outstanding = self.ledger().records(&mine).await?;
        let unwritten = outstanding.extract_if(.., |record| report.has_released(record.id)).count();
        report.audit_incomplete = unwritten + self.ledger().write_deferred_tries().await;
        let is_kept = |record: &mut Record| keeps && record.on_owner_death == OnOwnerDeath::Hold;
        let kept = outstanding.extract_if(.., is_kept).collect();
        let is_protected = |record: &mut Record| {
            let mut items = report.items.iter();
            items.any(|item| item.resource == Some(record.id) && item.is_protected)
        };
        let protected = outstanding.extract_if(.., is_protected).collect();
        Ok(Teardown { report, outstanding, kept, protected, unreachable })
    }

    /// Releases the records of this process, until nothing is left or can land late.
    async fn release_until_final(&self) -> Result<(Report, Vec<Unreachable>), LedgerError> {
        let (deadline, mut pause) = (Instant::now() + LATE, PAUSE);
        let mut items: Vec<ItemReport> = Vec::new();
        loop {
            let status = self.release_all().await?;
            for item in &status.items {
                items.retain(|known| known.id != item.id || known.kind != item.kind);
                items.push(item.clone());
            }
            let waits_for_others = status.open_intents == 0
                && status.recovered == 0
                && status.unreachable.is_empty()
                && items.iter().all(|item| item.result == Outcome::Gone || stays(item));
            if status.is_final() || waits_for_others || Instant::now() > deadline {
                // What is not on record is counted once all rounds are over.
                let report = Report { items, audit_incomplete: 0 };
                return Ok((report, status.unreachable));
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

/// Returns whether there is nothing to wait for: the item is protected, or a foreign container uses
/// the image.
fn stays(item: &ItemReport) -> bool {
    let is_used = item.kind == Kind::Image && item.class == Some(ErrorClass::InUse);
    // An image that only other images depend on has no user: its build was cut.
    let by_container = item.reason.as_ref().is_some_and(|reason| reason.contains("container"));
    item.result == Outcome::Spared || (is_used && by_container)
}
