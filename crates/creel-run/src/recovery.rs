//! Runs whose driver died: closed with a named cause, once all their resources are accounted for.
//!
//! No run is closed while one of its resources may still exist. The records of its resources are
//! the evidence, and the certificate is made from them. It names resources that cannot be removed.

use async_trait::async_trait;
use creel_core::reconcile::{RunCloser, Status};
use creel_ledger::event_log::{Journal, RecordsError};
use creel_ledger::{
    Event, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, Record, RecordFilter, RunFilter,
    RunRecord, StateName,
};
use creel_model::certificate::CertificateEntry;
use creel_model::owner::{Liveness, Owner};
use creel_model::run::{AttemptFrom, Cause, CauseClass, Certified, Phase, RunEvent, RunState};
use creel_sanitise::Diagnostic;
use tracing::{info, warn};

use crate::sandbox::Sandboxes;
use crate::{messages, spool};

/// What a round does with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunDecision {
    /// Leave it to its owner, or to a process that resumes it.
    Keep,
    /// One of its resources may still exist: check again later.
    Wait,
    /// Close it with this cause, unless another is known.
    Close(CauseClass),
    /// It is final, and what was kept of it is gone.
    Certify,
}

/// The evidence about a run besides its row.
#[derive(Debug)]
struct RunEvidence<'a> {
    /// The liveness of its owner.
    liveness: Liveness,
    /// The records of its resources.
    resources: &'a [Record],
    /// Whether another process took over something that its owner held.
    inherited: bool,
}

/// Decides about a run from its row and the evidence.
///
/// An owner of unknown liveness counts as alive until another process has taken over what it held.
/// That happens only when the lease has ended.
fn decide_run(run: &RunRecord, evidence: &RunEvidence<'_>) -> RunDecision {
    let RunEvidence { liveness, resources, inherited } = *evidence;
    let is_open = |record: &Record| {
        record.state.name().is_open() && record.state.name() != StateName::Quarantined
    };
    let (by_lease, is_releasing) = (CauseClass::LeaseExpired, run.state.phase == Phase::Releasing);
    match (liveness, run.on_owner_death) {
        (Liveness::Alive, _) => RunDecision::Keep,
        (Liveness::Unknown, _) if !inherited => RunDecision::Keep,
        _ if resources.iter().any(is_open) => decide_with_open_resources(run),
        _ if run.state.phase.is_final() => RunDecision::Certify,
        (Liveness::Unknown, _) => RunDecision::Close(by_lease),
        // Another process takes over what a dead owner held when the lease has ended, or when the
        // dead owner had begun to release it.
        (Liveness::Dead, OnOwnerDeath::Hold) if inherited && !is_releasing => {
            RunDecision::Close(by_lease)
        }
        (Liveness::Dead, _) => RunDecision::Close(CauseClass::HubError),
    }
}

/// Decides about a run whose resources may still exist.
fn decide_with_open_resources(run: &RunRecord) -> RunDecision {
    // What is held, or kept for inspection, exists on purpose until its lease ends.
    let on_purpose = run.on_owner_death == OnOwnerDeath::Hold || run.state.phase.is_final();
    if on_purpose { RunDecision::Keep } else { RunDecision::Wait }
}

/// Closes runs for a reconciler, as this process.
#[derive(Debug)]
pub struct RunRecovery {
    ledger: Ledger,
    /// This process, which takes over the runs that it closes.
    me: OwnerRecord,
    /// The access to the sandboxes of those runs.
    sandboxes: Option<Sandboxes>,
}

#[async_trait]
impl RunCloser for RunRecovery {
    async fn prepare_release(&self, records: &[&Record]) {
        if let Some(sandboxes) = &self.sandboxes {
            spool::remove_all(&self.ledger, sandboxes, records).await;
        }
    }

    async fn close_runs(
        &self,
        dead: Option<&Owner>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let mut filter = RunFilter::unfinished();
        filter.owner = dead.cloned();
        for run in self.ledger.runs(&filter).await? {
            // The rest of the ledger is read only for runs whose owner is not known to be alive.
            let liveness = run.owner_liveness();
            if liveness == Liveness::Alive {
                continue;
            }
            let resources = self.ledger.records(&RecordFilter::of_run(run.id)).await?;
            let inherited = self.was_inherited(&run, &resources).await?;
            match decide_run(&run, &RunEvidence { liveness, resources: &resources, inherited }) {
                RunDecision::Keep => {}
                RunDecision::Wait => status.runs_waiting += 1,
                RunDecision::Close(class) => {
                    let class = self.cause_of_death(class);
                    self.close_run(&run, Some(class), &resources, status).await?;
                }
                RunDecision::Certify => self.close_run(&run, None, &resources, status).await?,
            }
        }
        messages::remove_finished(&self.ledger).await
    }
}

impl RunRecovery {
    /// Closes runs that are on this ledger.
    pub fn new(ledger: Ledger, me: OwnerRecord) -> Self {
        Self { ledger, me, sandboxes: None }
    }

    /// Also removes the spools from these sandboxes before they are released.
    #[must_use]
    pub fn with_sandboxes(mut self, sandboxes: Sandboxes) -> Self {
        self.sandboxes = Some(sandboxes);
        self
    }

    /// Returns the cause class of a driver's death, which is a full disk if one occurred.
    fn cause_of_death(&self, class: CauseClass) -> CauseClass {
        match class {
            CauseClass::HubError if self.ledger.was_disk_full() => CauseClass::DiskFull,
            other => other,
        }
    }

    /// Returns whether another process took over something that the run's owner held.
    ///
    /// Transfers before this owner had the run say nothing about this owner.
    async fn was_inherited(
        &self,
        run: &RunRecord,
        resources: &[Record],
    ) -> Result<bool, LedgerError> {
        let owner = &run.owner.owner;
        for record in resources.iter().filter(|record| record.owner.owner != *owner) {
            let history = self.ledger.history(record.id).await?;
            let was_owner = history.iter().any(|stored| match &stored.event {
                Event::Intended { owner: by } | Event::OwnerChanged { owner: by } => {
                    by.owner == *owner
                }
                _ => false,
            });
            if was_owner {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn close_run(
        &self,
        run: &RunRecord,
        class: Option<CauseClass>,
        resources: &[Record],
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        match self.write_ending(run, class, certificate(resources)).await {
            Ok(true) => status.runs_closed += 1,
            // Another process was faster.
            Ok(false) => {}
            Err(RecordsError::Store(error)) => return Err(error),
            Err(error) => {
                warn!(run_id = %run.id, error = &error as &dyn std::error::Error, "a run cannot be closed");
                status.runs_waiting += 1;
            }
        }
        Ok(())
    }

    /// Takes over the run and records how it ended. Returns whether that was left to do.
    async fn write_ending(
        &self,
        run: &RunRecord,
        class: Option<CauseClass>,
        certificate: Certified,
    ) -> Result<bool, RecordsError> {
        let from = &run.owner.owner;
        let Some(mut journal) = Journal::claim(&self.ledger, run.id, from, &self.me).await? else {
            return Ok(false);
        };
        let ending = ending_of(journal.state(), class, certificate);
        if ending.is_empty() {
            return Ok(false);
        }
        journal.record_all(ending).await?;
        let phase = journal.state().phase;
        info!(run_id = %run.id, %phase, "closed a run whose driver died");
        Ok(true)
    }
}

/// Returns the events that end a run from its current state; none if it has ended.
fn ending_of(state: &RunState, class: Option<CauseClass>, certificate: Certified) -> Vec<RunEvent> {
    let released = RunEvent::Released { certificate };
    if state.phase.is_final() {
        // Events in the log that are not yet in the row may have ended it already.
        return if state.kept_until_ms.is_some() { vec![released] } else { Vec::new() };
    }
    let mut events = Vec::new();
    if state.sequence == 0 {
        events.push(RunEvent::Queued);
    }
    if state.attempt == 0 {
        events.push(RunEvent::AttemptStarted { attempt: 1, from: AttemptFrom::Scratch });
    }
    let known = state.cause().map(|cause| cause.class);
    let class = class.unwrap_or(CauseClass::HubError);
    if known.is_none() {
        let cause = Cause::new(class, sentence(class), state.attempt.max(1));
        events.push(RunEvent::CauseLatched { cause });
    }
    if state.phase != Phase::Releasing {
        events.push(RunEvent::PhaseEntered { phase: Phase::Releasing });
    }
    events.push(released);
    let cancelled = known.unwrap_or(class) == CauseClass::Cancelled;
    let phase = if cancelled { Phase::Cancelled } else { Phase::Failed };
    events.push(RunEvent::PhaseEntered { phase });
    events
}

fn sentence(class: CauseClass) -> Diagnostic {
    Diagnostic::ours(match class {
        CauseClass::LeaseExpired => {
            "the lease of what it held ended, and nothing had resumed the run"
        }
        CauseClass::DiskFull => {
            "its driver ended while the disk that holds creel's records was full"
        }
        _ => "the driver of the run died",
    })
}

/// Creates the certificate from the records: everything that is not verified gone is left.
fn certificate(resources: &[Record]) -> Certified {
    let is_left = |record: &&Record| record.state.name().is_open();
    let left: Vec<CertificateEntry> = resources.iter().filter(is_left).map(entry_of).collect();
    Certified { verified: left.is_empty(), left }
}

fn entry_of(record: &Record) -> CertificateEntry {
    CertificateEntry {
        provider: record.provider,
        kind: record.kind,
        id: record.state.object().unwrap_or_default().to_owned(),
        name: record.name.as_str().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use creel_core::reconcile::Reconciler;
    use creel_ledger::examples::{a_dead_owner, a_run_of, me};
    use creel_ledger::{Intent, NewRun};
    use creel_model::id::{ResourceId, RunId};
    use creel_model::provider::{Kind, Providers};
    use creel_model::run::examples::events_until_running;
    use creel_sanitise::Masked;
    use tempfile::TempDir;

    use super::*;

    /// A ledger with one running run of a dead owner.
    struct RecoveryFixture {
        _home: TempDir,
        ledger: Ledger,
        run: NewRun,
    }

    impl RecoveryFixture {
        async fn of_dead_owner(on_owner_death: OnOwnerDeath, more: &[RunEvent]) -> Self {
            let home = tempfile::tempdir().unwrap();
            let ledger = Ledger::open(home.path()).await.unwrap();
            let run = NewRun { on_owner_death, ..a_run_of(a_dead_owner()) };
            let mut journal = Journal::begin(&ledger, &run).await.unwrap();
            let events = [&events_until_running()[1..], more].concat();
            journal.record_all(events).await.unwrap();
            Self { _home: home, ledger, run }
        }

        fn reconciler(&self) -> Reconciler {
            Reconciler::new(self.ledger.clone(), Providers::new(Vec::new()), me())
                .with_run_closer(Arc::new(RunRecovery::new(self.ledger.clone(), me())))
        }

        /// Records a resource for the run.
        async fn add_resource(&self, events: &[Event]) -> ResourceId {
            let id = ResourceId::new();
            let intent = Intent {
                id,
                run: Some(self.run.id),
                provider: self.run.provider,
                kind: Kind::Directory,
                name: id.object_name(),
                labels: Default::default(),
                owner: self.run.owner.clone(),
                on_owner_death: self.run.on_owner_death,
                lease: Duration::from_secs(600),
            };
            self.ledger.record_intent(&intent).await.unwrap();
            let events: Vec<_> = events.iter().map(|event| (id, event.clone())).collect();
            self.ledger.append(&events).await.unwrap();
            id
        }

        async fn state(&self) -> RunState {
            self.ledger.run(self.run.id).await.unwrap().unwrap().state
        }

        async fn cause(&self) -> Option<CauseClass> {
            self.state().await.cause().map(|cause| cause.class)
        }

        async fn newest(&self) -> u64 {
            self.ledger.event_log().await.unwrap().newest(self.run.id).await.unwrap()
        }
    }

    fn created() -> Event {
        Event::Created { object: "d1".to_owned(), identity: None }
    }

    fn requested() -> Event {
        Event::ReleaseRequested { why: Masked::ours("test") }
    }

    #[tokio::test]
    async fn a_run_of_a_dead_driver_is_closed_once_with_a_cause_and_a_certificate() {
        let fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Release, &[]).await;
        fixture.add_resource(&[created(), requested(), Event::VerifiedGone]).await;
        let status = fixture.reconciler().finish().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (1, 0));
        let state = fixture.state().await;
        assert_eq!(
            (state.phase, fixture.cause().await),
            (Phase::Failed, Some(CauseClass::HubError))
        );
        assert_eq!(state.certificate, Some(Certified { verified: true, left: Vec::new() }));

        let newest = fixture.newest().await;
        let again = fixture.reconciler().finish().await.unwrap();
        assert_eq!((again.runs_closed, again.runs_waiting), (0, 0));
        assert_eq!((fixture.newest().await, fixture.state().await), (newest, state));
    }

    #[tokio::test]
    async fn an_earlier_cause_stays_the_decisive_one() {
        let message = Diagnostic::ours("the model said nothing for 120s");
        let cause = Cause::new(CauseClass::ModelTimeout, message, 1);
        let latched = RunEvent::CauseLatched { cause };
        let fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Release, &[latched]).await;
        let status = fixture.reconciler().round().await.unwrap();
        assert_eq!(status.runs_closed, 1);
        assert_eq!(fixture.cause().await, Some(CauseClass::ModelTimeout));
        assert_eq!(fixture.state().await.causes.chain().len(), 1);
    }

    #[tokio::test]
    async fn a_run_that_was_cancelled_ends_as_cancelled() {
        let cause = Cause::new(CauseClass::Cancelled, Diagnostic::ours("a user asked"), 1);
        let releasing = RunEvent::PhaseEntered { phase: Phase::Releasing };
        let events = [RunEvent::CauseLatched { cause }, releasing];
        let fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Release, &events).await;
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 1);
        assert_eq!(fixture.state().await.phase, Phase::Cancelled);
    }

    #[tokio::test]
    async fn a_run_waits_for_its_resources_and_its_certificate_lists_stuck_ones() {
        let fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Release, &[]).await;
        let resource = fixture.add_resource(&[created()]).await;
        // There is no provider here to check it, so it may still exist.
        let status = fixture.reconciler().finish().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (0, 1));
        assert_eq!(fixture.state().await.phase, Phase::Running);

        let stuck = Event::Quarantined { reason: Masked::ours("it will not go") };
        fixture.ledger.append(&[(resource, requested()), (resource, stuck)]).await.unwrap();
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 1);
        let certificate = fixture.state().await.certificate.unwrap();
        assert!(!certificate.verified);
        assert_eq!(certificate.left.iter().map(|left| &left.id).collect::<Vec<_>>(), ["d1"]);
    }

    #[tokio::test]
    async fn a_run_that_never_began_is_closed_too() {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let run = a_run_of(a_dead_owner());
        ledger.create_run(&run).await.unwrap();
        let fixture = RecoveryFixture { _home: home, ledger, run };
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 1);
        let state = fixture.state().await;
        assert_eq!((state.phase, state.attempt), (Phase::Failed, 1));
        assert_eq!(fixture.newest().await, state.sequence);
    }

    #[tokio::test]
    async fn a_held_run_is_left_alone_until_its_lease_ends() {
        let fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Hold, &[]).await;
        let resource = fixture.add_resource(&[created()]).await;
        let status = fixture.reconciler().finish().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (0, 0));

        // This is what a reconciler does when the lease has ended.
        let dead = &fixture.run.owner.owner;
        fixture.ledger.take_over(&[resource], dead, &me()).await.unwrap();
        let gone = [(resource, requested()), (resource, Event::VerifiedGone)];
        fixture.ledger.append(&gone).await.unwrap();
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 1);
        assert_eq!(fixture.cause().await, Some(CauseClass::LeaseExpired));
    }

    #[tokio::test]
    async fn resources_of_an_earlier_driver_do_not_affect_the_lease_of_this_one() {
        let mut fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Hold, &[]).await;
        let second = OwnerRecord { command: "creel retry".into(), ..a_dead_owner() };
        let (first, mut heir) = (fixture.run.owner.owner.clone(), second);
        heir.owner.process.started_ticks += 1;
        fixture.add_resource(&[created(), requested(), Event::VerifiedGone]).await;
        fixture.ledger.claim_run(fixture.run.id, &first, &heir).await.unwrap().unwrap();
        fixture.run.owner = heir;
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 1);
        assert_eq!(fixture.cause().await, Some(CauseClass::HubError));
    }

    #[tokio::test]
    async fn a_finished_run_is_certified_once_its_kept_sandbox_is_gone() {
        let enter = |phase| RunEvent::PhaseEntered { phase };
        let kept = RunEvent::Kept { until_ms: 9 };
        let ending = [kept, enter(Phase::Releasing), enter(Phase::Succeeded)];
        let fixture = RecoveryFixture::of_dead_owner(OnOwnerDeath::Release, &ending).await;
        let resource = fixture.add_resource(&[created()]).await;
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 0);
        let gone = [(resource, requested()), (resource, Event::VerifiedGone)];
        fixture.ledger.append(&gone).await.unwrap();
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 1);
        let state = fixture.state().await;
        assert_eq!((state.phase, state.kept_until_ms), (Phase::Succeeded, None));
        assert!(state.certificate.unwrap().verified);
        assert_eq!(fixture.reconciler().finish().await.unwrap().runs_closed, 0);
    }

    #[tokio::test]
    async fn a_run_of_a_live_driver_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let run = a_run_of(me());
        Journal::begin(&ledger, &run).await.unwrap();
        let fixture = RecoveryFixture { _home: home, ledger, run };
        let status = fixture.reconciler().round().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (0, 0));
        assert_eq!(fixture.newest().await, 1);
    }

    fn record_of(run: RunId, owner: &OwnerRecord) -> RunRecord {
        RunRecord {
            id: run,
            name: "hello".into(),
            provider: creel_process::NAME,
            owner: owner.clone(),
            on_owner_death: OnOwnerDeath::Release,
            created_at_ms: 0,
            changed_at_ms: 0,
            state: RunState { phase: Phase::Running, attempt: 1, ..RunState::new() },
        }
    }

    #[test]
    fn a_driver_of_unknown_liveness_counts_as_alive() {
        let run = record_of(RunId::new(), &a_dead_owner());
        let decision_for = |liveness, inherited| {
            decide_run(&run, &RunEvidence { liveness, resources: &[], inherited })
        };
        assert_eq!(decision_for(Liveness::Unknown, false), RunDecision::Keep);
        assert_eq!(decision_for(Liveness::Alive, true), RunDecision::Keep);
        let by_lease = RunDecision::Close(CauseClass::LeaseExpired);
        assert_eq!(decision_for(Liveness::Unknown, true), by_lease);
        assert_eq!(decision_for(Liveness::Dead, false), RunDecision::Close(CauseClass::HubError));
    }
}
