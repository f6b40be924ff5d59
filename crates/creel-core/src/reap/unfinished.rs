//! The ledger's record of deletes that were accepted but did not finish.
//!
//! The first report of such a delete is a failure. Later reports are not, until the date that the
//! provider named has passed.

use std::collections::HashSet;

use creel_ledger::{Ledger, Noted, UnfinishedDelete};
use creel_model::provider::{Kind, ProviderName, Retention};
use creel_sanitise::{Masker, Secrets};
use jiff::Timestamp;
use tracing::warn;

use crate::plan::PlanItem;

use super::item::Job;
use super::{ItemReport, Outcome};

/// The key that identifies an object.
type ObjectKey = (ProviderName, Kind, String);

/// The deletes that are on record as unfinished when a plan is executed.
#[derive(Debug, Default)]
pub(super) struct Unfinished(HashSet<ObjectKey>);

impl Unfinished {
    /// Reads the unfinished deletes. Returns none if there is no readable ledger.
    pub(super) async fn read(ledger: Option<&Ledger>) -> Self {
        let Some(ledger) = ledger else { return Self::default() };
        match ledger.unfinished_deletes().await {
            Ok(deletes) => {
                Self(deletes.into_iter().map(|one| (one.provider, one.kind, one.id)).collect())
            }
            Err(error) => {
                warn!(%error, "the unfinished deletes could not be read");
                Self::default()
            }
        }
    }

    fn has(&self, item: &PlanItem) -> bool {
        // Clone the id only if there are any entries at all.
        !self.0.is_empty()
            && self.0.contains(&(item.seen.provider, item.seen.kind, item.seen.id.clone()))
    }
}

impl Job<'_> {
    /// Reports an object that its provider keeps although the delete was accepted.
    pub(super) async fn report_retained(
        &self,
        item: &PlanItem,
        tries: u32,
        retention: Retention,
    ) -> ItemReport {
        let report = ItemReport { tries, ..ItemReport::new(item, Outcome::Accepted, None) };
        let noted = self.note(item, &retention.describe(), Some(retention.until)).await;
        let now = self.ledger.map_or(self.now, |ledger| ledger.clock().now().timestamp());
        let until = noted.as_ref().and_then(|noted| noted.delete.kept_until);
        let retention = Retention { until: until.unwrap_or(retention.until), ..retention };
        let reason = retention.describe();
        let report = ItemReport {
            reason: Some(reason.clone()),
            kept_until: Some(retention.until),
            known_before: noted.is_some_and(|noted| !noted.is_new && !noted.delete.is_overdue(now)),
            ..report
        };
        let report = self.quarantine(item, report, reason).await;
        // The record is quarantined, but the outcome of the delete is that it was accepted.
        ItemReport { result: Outcome::Accepted, ..report }
    }

    /// Records a foreign object whose delete was accepted but did not finish.
    ///
    /// A tracked object already has a record that says so.
    pub(super) async fn note_accepted(&self, item: &PlanItem, report: ItemReport) -> ItemReport {
        if item.resource.is_none() {
            let reason = report.reason.clone().unwrap_or_default();
            self.note(item, &reason, None).await;
        }
        report
    }

    async fn note(
        &self,
        item: &PlanItem,
        reason: &str,
        kept_until: Option<Timestamp>,
    ) -> Option<Noted> {
        let ledger = self.ledger.filter(|_| item.seen.kind.has_lasting_ids())?;
        let masker = Masker::new(&Secrets::default());
        let delete = UnfinishedDelete {
            provider: item.seen.provider,
            kind: item.seen.kind,
            id: item.seen.id.clone(),
            name: masker.mask(&item.seen.name),
            resource: item.resource,
            reason: masker.diagnostic(reason),
            kept_until,
            first_seen_at: ledger.clock().now().timestamp(),
        };
        match ledger.note_unfinished(&delete).await {
            Ok(noted) => Some(noted),
            Err(error) => {
                warn!(id = %item.seen.id, %error, "an unfinished delete could not be recorded");
                None
            }
        }
    }

    /// Removes the unfinished delete of an object whose absence is verified, if there was one.
    pub(super) async fn forget_unfinished(&self, item: &PlanItem) {
        let Some(ledger) = self.ledger.filter(|_| self.unfinished.has(item)) else { return };
        let seen = &item.seen;
        if let Err(error) = ledger.forget_unfinished(seen.provider, seen.kind, &seen.id).await {
            // The next reconcile checks it again.
            warn!(id = %seen.id, %error, "a finished delete is still on record as unfinished");
        }
    }
}
