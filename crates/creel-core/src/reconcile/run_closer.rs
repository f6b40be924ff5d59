//! Closing runs: the part of a round that belongs to the run engine.

use std::fmt;

use async_trait::async_trait;
use creel_ledger::{LedgerError, Record};
use creel_model::owner::Owner;

use super::finish::SearchResult;
use super::{Reconciler, Status};

/// Closes the runs of dead drivers.
///
/// The run engine implements this above the core. A reconciler without it handles resources only.
#[async_trait]
pub trait RunCloser: Send + Sync + fmt::Debug {
    /// Prepares the objects of records for their release: removes what must not stay in them if the
    /// release fails.
    ///
    /// It has a time limit, and what it cannot do never prevents the release.
    async fn prepare_release(&self, records: &[&Record]);

    /// Closes the runs of dead owners whose resources are all accounted for.
    ///
    /// With `dead`, only the runs of that owner are closed. A second call changes nothing.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used. A run that cannot be closed is counted as waiting, and
    /// left to the next round.
    async fn close_runs(
        &self,
        dead: Option<&Owner>,
        status: &mut Status,
    ) -> Result<(), LedgerError>;
}

impl Reconciler {
    /// Prepares the objects that a search has found for their release.
    pub(super) async fn prepare_release(&self, searched: &[(Record, SearchResult)]) {
        let Some(closer) = &self.run_closer else { return };
        let found = searched.iter().filter(|(_, found)| matches!(found, SearchResult::Found(_)));
        let records: Vec<&Record> = found.map(|(record, _)| record).collect();
        closer.prepare_release(&records).await;
    }

    /// Closes runs after their resources were handled. A full disk is counted, not an error.
    pub(super) async fn close_runs(
        &self,
        dead: Option<&Owner>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let Some(closer) = &self.run_closer else { return Ok(()) };
        let closed = closer.close_runs(dead, status).await;
        status.tolerate_full(closed)
    }
}
