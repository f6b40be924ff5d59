//! The last events of a run, recorded even if the disk is full.

use std::time::Duration;

use creel_ledger::event_log::RecordsError;
use creel_ledger::{LedgerError, Record, RecordFilter};
use creel_model::clock::now_ms;
use creel_model::run::{Cause, CauseClass, Certified, Logged, Phase, RunEvent};
use tokio::time::Instant;
use tracing::warn;

use super::{DISK_FULL, Drive, DriveError, RunEnd};

/// How long to wait for free space once everything is released.
const SPACE_PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);

impl Drive {
    /// Returns whether the run ends because the disk is full, and its sandbox is on this machine.
    pub(super) fn fills_the_disk(&self) -> bool {
        let cause = self.journal.state().cause().map(|cause| cause.class);
        cause == Some(CauseClass::DiskFull)
            && self.held.iter().any(|held| self.context.providers.is_local(held.provider))
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

    /// Records how the run ended, and returns it.
    ///
    /// Retries for a while if the disk is full, because the release may just have freed space. What
    /// cannot be recorded even then is counted; the watchdog records it when there is space.
    pub(super) async fn write_ending(
        &mut self,
        certificate: Option<Certified>,
    ) -> Result<RunEnd, DriveError> {
        let deadline = Instant::now() + SPACE_PATIENCE;
        loop {
            match self.try_ending(certificate.as_ref()).await {
                Ok(true) => {
                    let state = self.journal.state().clone();
                    let audit_incomplete = self.context.ledger.write_deferred_tries().await;
                    return Ok(RunEnd { state, audit_incomplete });
                }
                Ok(false) => {}
                Err(error) if error.is_disk_full() => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                return self.unrecorded_end(certificate.as_ref()).await;
            }
            warn!("the end of the run cannot be written yet: the disk is full");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Records the missing events of the end. Events that are already recorded are not repeated.
    ///
    /// Returns whether everything is on record. No end is written before all releases are.
    async fn try_ending(&mut self, certificate: Option<&Certified>) -> Result<bool, DriveError> {
        if !self.unrecorded_releases().await?.is_empty() {
            let status = self.context.supervisor.release_run(self.journal.run()).await?;
            if status.audit_incomplete > 0 {
                return Ok(false);
            }
        }
        let events = self.missing_events(certificate);
        self.journal.record_all(events).await?;
        self.journal.flush().await?;
        Ok(true)
    }

    /// Returns the records of resources that are verified gone, and that do not say so.
    async fn unrecorded_releases(&self) -> Result<Vec<Record>, LedgerError> {
        if !self.context.ledger.is_disk_full() {
            return Ok(Vec::new());
        }
        let records = RecordFilter { run: Some(self.journal.run()), ..RecordFilter::open() };
        let mut open = self.context.ledger.records(&records).await?;
        open.retain(|record| self.released.contains(&record.id));
        Ok(open)
    }

    /// Returns the events of the end that are not recorded yet.
    fn missing_events(&self, certificate: Option<&Certified>) -> Vec<RunEvent> {
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
        events
    }

    /// Returns the end of a run for which there is no space.
    async fn unrecorded_end(&self, certificate: Option<&Certified>) -> Result<RunEnd, DriveError> {
        let mut state = self.journal.state().clone();
        let events = self.missing_events(certificate);
        let releases = self.unrecorded_releases().await?.len();
        let tries = self.context.ledger.write_deferred_tries().await;
        let audit_incomplete = events.len() + releases + tries;
        warn!(audit_incomplete, "the end of the run is not on record: the disk stays full");
        for event in events {
            let sequence = state.sequence + 1;
            let logged = Logged { sequence, at_ms: now_ms(), spooled: None, event };
            let applied = state.apply(&logged);
            applied.map_err(|source| RecordsError::Illegal { run: self.journal.run(), source })?;
        }
        Ok(RunEnd { state, audit_incomplete })
    }
}
