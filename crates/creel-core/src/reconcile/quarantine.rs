//! What would not go: tried once more by every full round, because the obstacle may have gone.
//!
//! A record stays quarantined while it is tried, so a crash in the middle leaves it as it was. A
//! try that fails for the same reason writes nothing but the audit; another reason replaces the
//! one on record.

use crate::id::ResourceId;
use crate::ledger::{LedgerError, Record};
use crate::plan::Plan;
use crate::reap::ReapOptions;

use super::finish::Search;
use super::{Reconciler, Status, is_quarantined};

impl Reconciler {
    /// Tries to release what is quarantined and nobody answers for, each thing once.
    pub(super) async fn retry_quarantined(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let ids: Vec<ResourceId> = records.iter().map(|record| record.id).collect();
        let mut items = Vec::new();
        // A provider that does not answer is noted by the inventory of the same round.
        for (record, found) in self.search_all(records, &mut Status::default()).await {
            match found {
                Search::Found(seen) => items.push(self.plan_release(&record, *seen).await?),
                Search::Absent | Search::Nothing(..) => self.close_absent(&record).await?,
                Search::Several(_) | Search::NothingYet(..) => {}
            }
        }
        if !items.is_empty() {
            let options = ReapOptions { is_second_try: true, ..self.options.clone() };
            status.add(self.reaper().run(&Plan::of_ours(items), &options, &()).await);
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
