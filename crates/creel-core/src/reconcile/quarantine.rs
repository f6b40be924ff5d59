//! Quarantined records: every full round retries them once, because the obstacle may be gone.
//!
//! A record stays quarantined during the retry, so a crash in the middle leaves it unchanged. A
//! retry that fails for the same reason writes nothing but the audit. Another reason replaces the
//! recorded one.

use creel_ledger::{LedgerError, Record};
use creel_model::id::ResourceId;

use super::finish::SearchResult;
use super::{Reconciler, Status, is_quarantined};

impl Reconciler {
    /// Retries once to release each quarantined record that has no responsible owner.
    pub(super) async fn retry_quarantined(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let ids: Vec<ResourceId> = records.iter().map(|record| record.id).collect();
        let mut items = Vec::new();
        // The inventory of the same round notes a provider that does not respond.
        let searched = self.search_all(records, &mut Status::default()).await;
        self.prepare_release(&searched).await;
        for (record, found) in searched {
            match found {
                SearchResult::Found(seen) => items.push(self.plan_release(&record, *seen).await?),
                SearchResult::Absent | SearchResult::NeverCreated(..) => {
                    self.close_absent(&record).await?
                }
                SearchResult::Several(_) | SearchResult::Pending(..) => {}
            }
        }
        if !items.is_empty() {
            status.add(self.pipeline().release_again(items).await);
        }
        for id in ids {
            if !self.ledger.record(id).await?.is_some_and(|record| is_quarantined(&record)) {
                status.quarantined -= 1;
                status.left_quarantine += 1;
            }
        }
        Ok(())
    }
}
