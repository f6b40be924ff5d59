//! The last events of a run, recorded even if the disk is full.

use std::time::Duration;

use creel_ledger::WhenFull;
use creel_ledger::event_log::RecordsError;
use creel_model::provider::ProviderName;
use creel_model::run::{Cause, CauseClass, Certified, Phase, RunEvent};
use tokio::time::Instant;
use tracing::warn;

use super::{DISK_FULL, Drive};

/// How long to wait for free space once everything is released.
const SPACE_PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

impl Drive {
    /// Returns whether the run ends because the disk is full, and its sandbox is on this machine.
    pub(super) fn fills_the_disk(&self) -> bool {
        let cause = self.journal.state().cause().map(|cause| cause.class);
        cause == Some(CauseClass::DiskFull)
            && self.held.iter().any(|held| held.provider == ProviderName::Process)
    }

    /// Returns the causes to latch. If an error is due to a full disk, the full disk comes first.
    pub(super) fn causes_of(&self, cause: Cause) -> Vec<Cause> {
        let is_choice = matches!(
            cause.class,
            CauseClass::Cancelled | CauseClass::BudgetExceeded | CauseClass::DiskFull
        );
        let ledger = &self.context.ledger;
        // Also checked now, because a write may be refused before the very last byte is used.
        let is_full = ledger.is_disk_full() || ledger.check_disk();
        if is_choice || !is_full {
            return vec![cause];
        }
        vec![self.cause(CauseClass::DiskFull, DISK_FULL), cause]
    }

    /// Records how the run ended.
    ///
    /// Retries for a while if the disk is full, because the release may just have freed space.
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

    /// Records the missing events of the end. Events that are already recorded are not repeated.
    async fn try_ending(&mut self, certificate: Option<&Certified>) -> Result<(), RecordsError> {
        let state = self.journal.state();
        let mut events = Vec::new();
        let mut verdict = state.verdict();
        // Only after a disk-full error is the run not in the releasing phase here.
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
