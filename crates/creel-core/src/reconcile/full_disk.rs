//! A round on a full disk: room is made first, by releasing what is on this machine.
//!
//! A record is taken over before anything is done with it, which needs room. Where there is none,
//! not even the space that is kept for this, the directories and process trees of dead owners are
//! released first: their identity is on record, and they may be what fills the disk. What could
//! not be written is counted; the next round writes it.

use tracing::warn;

use crate::ledger::write::WhenFull;
use crate::ledger::{LedgerError, Record};
use crate::plan::Plan;

use super::finish::{Search, item_of};
use super::{Reconciler, Status};

impl Status {
    /// Counts a change that there was no room for, instead of ending the round with it.
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
    /// Becomes the owner of records; where there is no room to write that, makes some first.
    pub(super) async fn take_over_or_make_room(
        &self,
        due: Vec<Record>,
        status: &mut Status,
    ) -> Result<Vec<Record>, LedgerError> {
        match self.take_over(due.clone()).await {
            Err(error) if error.is_disk_full() => {}
            other => return other,
        }
        self.release_local(due.clone(), status).await;
        // What is closed by now is not taken over any more.
        let taken = self.take_over(due).await;
        match taken {
            Err(error) if error.is_disk_full() => {
                status.tolerate_full(Err(error))?;
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// Releases what records of dead owners say to be on this machine; nothing has to be written
    /// for it. Another process that does the same finds it absent.
    async fn release_local(&self, due: Vec<Record>, status: &mut Status) {
        let local = due.into_iter().filter(|record| {
            self.providers.is_local(record.provider) && record.state.object().is_some()
        });
        let found = self.search_all(local.collect(), status).await;
        let items: Vec<_> = found
            .into_iter()
            .filter_map(|(record, found)| match found {
                Search::Found(seen) => Some(item_of(&record, *seen)),
                _ => None,
            })
            .collect();
        if !items.is_empty() {
            status.add(self.reaper().run(&Plan::of_ours(items), &self.options, &()).await);
        }
    }
}
