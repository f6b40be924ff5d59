//! Closing runs: the part of a round that belongs to the run engine.

use std::fmt;

use async_trait::async_trait;
use creel_ledger::LedgerError;
use creel_model::owner::Owner;

use super::{Reconciler, Status};

/// Closes the runs of dead drivers.
///
/// The run engine implements this above the core. A reconciler without it handles resources only.
#[async_trait]
pub trait RunCloser: Send + Sync + fmt::Debug {
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
