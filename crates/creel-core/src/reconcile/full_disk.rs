//! A round on a full disk: it first frees space by releasing local resources.
//!
//! A record is taken over before anything is done with it, which needs space. If there is none, not
//! even the reserved space, the directories and process trees of dead owners are released first.
//! Their identity is on record, and they may be what fills the disk. Changes that could not be
//! written are counted, and the next round writes them.

use std::collections::HashSet;

use creel_ledger::WhenFull;
use creel_ledger::{LedgerError, Record};
use creel_model::id::ResourceId;
use tracing::warn;

use crate::reap::ItemReport;

use super::finish::{SearchResult, item_of};
use super::{Reconciler, Status};

impl Status {
    /// Counts a change for which there was no space, instead of failing the round.
    pub(super) fn tolerate_full(
        &mut self,
        written: Result<(), LedgerError>,
    ) -> Result<(), LedgerError> {
        match written {
            Err(error) if error.is_disk_full() => {
                warn!(%error, "audit incomplete: a change is not on record");
                self.audit_incomplete += 1;
                Ok(())
            }
            other => other,
        }
    }
}

impl Reconciler {
    /// Takes ownership of records. If there is no space to write that, frees some first.
    pub(super) async fn take_over_or_free_space(
        &self,
        due: Vec<Record>,
        status: &mut Status,
    ) -> Result<Vec<Record>, LedgerError> {
        let mut taken = Vec::new();
        match self.take_over(due.clone(), &mut taken).await {
            Err(error) if error.is_disk_full() => {}
            other => return other.map(|()| taken),
        }
        let due = untaken(due, &taken);
        self.release_local(due.clone(), status).await;
        // Records that are closed by now are not taken over any more.
        match self.take_over(due.clone(), &mut taken).await {
            Err(error) if error.is_disk_full() => {
                let left = untaken(due, &taken).into_iter();
                // Local objects were tried above and are in the report already.
                let left = left.filter(|record| !self.is_local_object(record));
                status.items.extend(left.map(|record| {
                    ItemReport::untried(&item_of(&record, record.as_recorded()), &error)
                }));
                status.tolerate_full(Err(error))?;
                Ok(taken)
            }
            other => other.map(|()| taken),
        }
    }

    /// Returns whether the object of a record is on this machine.
    fn is_local_object(&self, record: &Record) -> bool {
        self.providers.is_local(record.provider) && record.state.object().is_some()
    }

    /// Releases the local objects of dead owners' records.
    ///
    /// This needs no write beforehand. Another process that does the same finds them absent.
    async fn release_local(&self, due: Vec<Record>, status: &mut Status) {
        let local = due.into_iter().filter(|record| self.is_local_object(record));
        let found = self.search_all(local.collect(), status).await;
        let items: Vec<_> = found
            .into_iter()
            .filter_map(|(record, found)| match found {
                SearchResult::Found(seen) => Some(item_of(&record, *seen)),
                _ => None,
            })
            .collect();
        if !items.is_empty() {
            status.add(self.pipeline().release_ours(items).await);
        }
    }
}

/// Returns the due records that were not taken over.
fn untaken(due: Vec<Record>, taken: &[Record]) -> Vec<Record> {
    let taken: HashSet<ResourceId> = taken.iter().map(|record| record.id).collect();
    due.into_iter().filter(|record| !taken.contains(&record.id)).collect()
}
