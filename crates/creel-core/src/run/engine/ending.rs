//! The last events of a run, also on a disk that is full.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::ledger::write::WhenFull;
use crate::provider::ProviderName;
use crate::run::records::RecordsError;
use crate::run::{Cause, CauseClass, Certified, Phase, RunEvent};

use super::{DISK_FULL, Drive};

/// How long space is waited for once everything is released.
const SPACE_PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

impl Drive {
    /// Returns whether the run ends because the disk is full, and its own sandbox is on this
    /// machine.
    pub(super) fn fills_the_disk(&self) -> bool {
        let cause = self.journal.state().cause().map(|cause| cause.class);
        cause == Some(CauseClass::DiskFull)
            && self.held.iter().any(|held| held.provider == ProviderName::Process)
    }

    /// Returns what to latch for a cause: where something broke on a full disk, that comes first.
    pub(super) fn causes_of(&self, cause: Cause) -> Vec<Cause> {
        let is_choice = matches!(
            cause.class,
            CauseClass::Cancelled | CauseClass::BudgetExceeded | CauseClass::DiskFull
        );
        let ledger = &self.means.ledger;
        // Also where a write was refused before the very last byte was used.
        let is_full = ledger.is_disk_full() || ledger.check_disk();
        if is_choice || !is_full {
            return vec![cause];
        }
        vec![self.cause(CauseClass::DiskFull, DISK_FULL), cause]
    }

    /// Records how the run ended. Where the disk is full it is tried again for a while: what was
    /// released just now may have made room.
    pub(super) async fn write_ending(
        &mut self,
        certificate: Option<Certified>,
    ) -> Result<(), RecordsError> {
        let deadline = Instant::now() + SPACE_PATIENCE;
        loop {
            match self.try_ending(certificate.as_ref()).await {
                Err(error) if error.is_disk_full() && Instant::now() < deadline => {
                    warn!("the end of the run cannot be written yet: the disk is full");
                    tokio::time::sleep(PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Records what is missing of the end; what was recorded before is not recorded again.
    async fn try_ending(&mut self, certificate: Option<&Certified>) -> Result<(), RecordsError> {
        let state = self.journal.state();
        let mut events = Vec::new();
        let mut verdict = state.verdict();
        // Only a full disk comes here before the run is on its way out.
        if state.phase != Phase::Releasing && !state.phase.is_final() {
            if state.cause().is_none() {
                let cause = self.cause(CauseClass::DiskFull, DISK_FULL);
                events.push(RunEvent::CauseLatched { cause });
                verdict = Phase::Failed;
            }
            events.push(RunEvent::PhaseEntered { phase: Phase::Releasing });
        }
        if let Some(certificate) =
            certificate.filter(|known| state.certificate.as_ref() != Some(known))
        {
            events.push(RunEvent::Released { certificate: certificate.clone() });
        }
        if !state.phase.is_final() {
            events.push(RunEvent::PhaseEntered { phase: verdict });
        }
        self.journal.record_all(events).await?;
        self.journal.flush().await
    }
}
