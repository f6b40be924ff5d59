//! Runs whose driver died: closed with a named cause, once all they took is accounted for.
//!
//! Nothing is closed while something of the run may still be there: the records
//! of its resources are the evidence, and the certificate is made of them. What
//! will not go is named in it.

use tracing::{info, warn};

use crate::ledger::{
    Event, LedgerError, OnOwnerDeath, Record, RecordFilter, RunFilter, RunRecord, StateName,
};
use crate::owner::{Liveness, Owner};
use crate::reap::Entry;
use crate::run::records::{Journal, RecordsError};
use crate::run::{AttemptFrom, Cause, CauseClass, Certified, Phase, RunEvent, RunState, messages};
use crate::sanitise::Diagnostic;

use super::{Reconciler, Status};

/// What is to be done about a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Leave it to its owner, or to somebody who takes it up.
    Keep,
    /// Something of it may still be there: look again later.
    Wait,
    /// End it, for this reason unless another is known.
    Close(CauseClass),
    /// It is over; what was kept of it has gone.
    Certify,
}

/// What is known of a run besides its row.
#[derive(Debug)]
struct Evidence<'a> {
    /// Whether its owner lives.
    liveness: Liveness,
    /// What was taken for it.
    taken: &'a [Record],
    /// Whether somebody took over something that its owner held.
    inherited: bool,
}

/// Decides about a run from its row and the evidence.
///
/// An owner that cannot be judged is believed until somebody took over what it held, which
/// happens only when the lease has ended.
fn fate(run: &RunRecord, evidence: &Evidence<'_>) -> Fate {
    let Evidence { liveness, taken, inherited } = *evidence;
    let is_open = |record: &Record| {
        record.state.name().is_open() && record.state.name() != StateName::Quarantined
    };
    let (by_lease, is_releasing) = (CauseClass::LeaseExpired, run.state.phase == Phase::Releasing);
    match (liveness, run.on_owner_death) {
        (Liveness::Alive, _) => Fate::Keep,
        (Liveness::Unknown, _) if !inherited => Fate::Keep,
        _ if taken.iter().any(is_open) => still_there(run),
        _ if run.state.phase.is_final() => Fate::Certify,
        (Liveness::Unknown, _) => Fate::Close(by_lease),
        // What a dead owner held goes to another one when its lease has ended, or when the dead
        // one had begun to give it back.
        (Liveness::Dead, OnOwnerDeath::Hold) if inherited && !is_releasing => Fate::Close(by_lease),
        (Liveness::Dead, _) => Fate::Close(CauseClass::HubError),
    }
}

/// Decides about a run of which something may still be there.
fn still_there(run: &RunRecord) -> Fate {
    // What is held, or kept for people to look at, is there on purpose until its lease ends.
    let on_purpose = run.on_owner_death == OnOwnerDeath::Hold || run.state.phase.is_final();
    if on_purpose { Fate::Keep } else { Fate::Wait }
}

impl Reconciler {
    /// Closes the runs of owners that died, where nothing of them is left to wait for; of one
    /// owner where one is named. Done twice, the second time changes nothing.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be used. A run that cannot be closed is noted, and left to
    /// the next round.
    pub async fn close_runs(
        &self,
        dead: Option<&Owner>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let mut filter = RunFilter::unsettled();
        filter.owner = dead.cloned();
        for run in self.ledger.runs(&filter).await? {
            // Only for those in question is the rest of the ledger read.
            let liveness = run.owner_liveness();
            if liveness == Liveness::Alive {
                continue;
            }
            let taken = self.ledger.records(&RecordFilter::of_run(run.id)).await?;
            let inherited = self.was_inherited(&run, &taken).await?;
            match fate(&run, &Evidence { liveness, taken: &taken, inherited }) {
                Fate::Keep => {}
                Fate::Wait => status.runs_waiting += 1,
                Fate::Close(class) => {
                    let class = self.class_on_this_disk(class);
                    self.close_run(&run, Some(class), &taken, status).await?;
                }
                Fate::Certify => self.close_run(&run, None, &taken, status).await?,
            }
        }
        messages::remove_settled(&self.ledger).await
    }

    /// Returns the class of the cause of a driver's death: on a full disk, that.
    fn class_on_this_disk(&self, class: CauseClass) -> CauseClass {
        match class {
            CauseClass::HubError if self.ledger.was_disk_full() => CauseClass::DiskFull,
            other => other,
        }
    }

    /// Returns whether somebody took over something that the run's owner held. What changed
    /// hands before the run did says nothing about this owner.
    async fn was_inherited(&self, run: &RunRecord, taken: &[Record]) -> Result<bool, LedgerError> {
        let owner = &run.owner.owner;
        for record in taken.iter().filter(|record| record.owner.owner != *owner) {
            let history = self.ledger.history(record.id).await?;
            let had_it = history.iter().any(|stored| match &stored.event {
                Event::Intended { owner: by } | Event::OwnerChanged { owner: by } => {
                    by.owner == *owner
                }
                _ => false,
            });
            if had_it {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn close_run(
        &self,
        run: &RunRecord,
        class: Option<CauseClass>,
        taken: &[Record],
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        match self.write_ending(run, class, certificate(taken)).await {
            Ok(true) => status.runs_closed += 1,
            // Somebody else was quicker.
            Ok(false) => {}
            Err(RecordsError::Store(error)) => return Err(error),
            Err(error) => {
                warn!(run_id = %run.id, error = &error as &dyn std::error::Error, "a run cannot be closed");
                status.runs_waiting += 1;
            }
        }
        Ok(())
    }

    /// Takes the run over and writes how it ended; returns whether that was left to do.
    async fn write_ending(
        &self,
        run: &RunRecord,
        class: Option<CauseClass>,
        certificate: Certified,
    ) -> Result<bool, RecordsError> {
        let from = &run.owner.owner;
        let Some(mut journal) = Journal::take_up(&self.ledger, run.id, from, &self.me).await?
        else {
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

/// Returns the events that end a run, from wherever it is; none where it has ended.
fn ending_of(state: &RunState, class: Option<CauseClass>, certificate: Certified) -> Vec<RunEvent> {
    let released = RunEvent::Released { certificate };
    if state.phase.is_final() {
        // What its log has beyond its row may have ended it already.
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
            "the lease of what it held ended, and nobody had taken the run up"
        }
        CauseClass::DiskFull => {
            "its driver ended while the disk that holds creel's records was full"
        }
        _ => "whoever drove the run died",
    })
}

/// Makes the certificate of what the records say: what is not verified gone is left.
fn certificate(taken: &[Record]) -> Certified {
    let is_left = |record: &&Record| record.state.name().is_open();
    let left: Vec<Entry> = taken.iter().filter(is_left).map(entry_of).collect();
    Certified { verified: left.is_empty(), left }
}

fn entry_of(record: &Record) -> Entry {
    Entry {
        provider: record.provider,
        kind: record.kind,
        id: record.state.object().unwrap_or_default().to_owned(),
        name: record.name.as_str().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::id::{ResourceId, RunId};
    use crate::ledger::{Intent, Ledger, NewRun, OwnerRecord};
    use crate::provider::{Kind, Providers};
    use crate::run::examples::way_to_running;
    use crate::run::records::tests::{a_dead_owner, a_run_of, me};
    use crate::sanitise::Masked;

    /// A ledger with one running run of an owner that is dead.
    struct Scene {
        _home: TempDir,
        ledger: Ledger,
        run: NewRun,
    }

    impl Scene {
        async fn left_by_the_dead(on_owner_death: OnOwnerDeath, more: &[RunEvent]) -> Self {
            let home = tempfile::tempdir().unwrap();
            let ledger = Ledger::open(home.path()).await.unwrap();
            let run = NewRun { on_owner_death, ..a_run_of(a_dead_owner()) };
            let mut journal = Journal::begin(&ledger, &run).await.unwrap();
            let events = [&way_to_running()[1..], more].concat();
            journal.record_all(events).await.unwrap();
            Self { _home: home, ledger, run }
        }

        fn reconciler(&self) -> Reconciler {
            Reconciler::new(self.ledger.clone(), Providers::new(Vec::new()), me())
        }

        /// Takes something for the run.
        async fn take(&self, events: &[Event]) -> ResourceId {
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
        let scene = Scene::left_by_the_dead(OnOwnerDeath::Release, &[]).await;
        scene.take(&[created(), requested(), Event::VerifiedGone]).await;
        let status = scene.reconciler().finish().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (1, 0));
        let state = scene.state().await;
        assert_eq!((state.phase, scene.cause().await), (Phase::Failed, Some(CauseClass::HubError)));
        assert_eq!(state.certificate, Some(Certified { verified: true, left: Vec::new() }));

        let newest = scene.newest().await;
        let again = scene.reconciler().finish().await.unwrap();
        assert_eq!((again.runs_closed, again.runs_waiting), (0, 0));
        assert_eq!((scene.newest().await, scene.state().await), (newest, state));
    }

    #[tokio::test]
    async fn a_cause_that_was_latched_before_stays_the_one_that_counts() {
        let message = Diagnostic::ours("the model said nothing for 120s");
        let cause = Cause::new(CauseClass::ModelTimeout, message, 1);
        let latched = RunEvent::CauseLatched { cause };
        let scene = Scene::left_by_the_dead(OnOwnerDeath::Release, &[latched]).await;
        let status = scene.reconciler().round().await.unwrap();
        assert_eq!(status.runs_closed, 1);
        assert_eq!(scene.cause().await, Some(CauseClass::ModelTimeout));
        assert_eq!(scene.state().await.causes.chain().len(), 1);
    }

    #[tokio::test]
    async fn a_run_that_was_cancelled_ends_as_cancelled() {
        let cause = Cause::new(CauseClass::Cancelled, Diagnostic::ours("somebody asked"), 1);
        let releasing = RunEvent::PhaseEntered { phase: Phase::Releasing };
        let events = [RunEvent::CauseLatched { cause }, releasing];
        let scene = Scene::left_by_the_dead(OnOwnerDeath::Release, &events).await;
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 1);
        assert_eq!(scene.state().await.phase, Phase::Cancelled);
    }

    #[tokio::test]
    async fn a_run_waits_for_what_it_took_and_names_what_will_not_go() {
        let scene = Scene::left_by_the_dead(OnOwnerDeath::Release, &[]).await;
        let taken = scene.take(&[created()]).await;
        // Nobody can be asked for it here, so it may still be there.
        let status = scene.reconciler().finish().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (0, 1));
        assert_eq!(scene.state().await.phase, Phase::Running);

        let stuck = Event::Quarantined { reason: Masked::ours("it will not go") };
        scene.ledger.append(&[(taken, requested()), (taken, stuck)]).await.unwrap();
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 1);
        let certificate = scene.state().await.certificate.unwrap();
        assert!(!certificate.verified);
        assert_eq!(certificate.left.iter().map(|left| &left.id).collect::<Vec<_>>(), ["d1"]);
    }

    #[tokio::test]
    async fn a_run_that_never_began_is_closed_too() {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let run = a_run_of(a_dead_owner());
        ledger.create_run(&run).await.unwrap();
        let scene = Scene { _home: home, ledger, run };
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 1);
        let state = scene.state().await;
        assert_eq!((state.phase, state.attempt), (Phase::Failed, 1));
        assert_eq!(scene.newest().await, state.sequence);
    }

    #[tokio::test]
    async fn what_is_held_is_left_alone_until_its_lease_ends() {
        let scene = Scene::left_by_the_dead(OnOwnerDeath::Hold, &[]).await;
        let taken = scene.take(&[created()]).await;
        let status = scene.reconciler().finish().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (0, 0));

        // What a reconciler does when the lease has ended.
        let dead = &scene.run.owner.owner;
        scene.ledger.take_over(&[taken], dead, &me()).await.unwrap();
        let gone = [(taken, requested()), (taken, Event::VerifiedGone)];
        scene.ledger.append(&gone).await.unwrap();
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 1);
        assert_eq!(scene.cause().await, Some(CauseClass::LeaseExpired));
    }

    #[tokio::test]
    async fn what_an_earlier_driver_held_says_nothing_about_the_lease_of_this_one() {
        let mut scene = Scene::left_by_the_dead(OnOwnerDeath::Hold, &[]).await;
        let second = OwnerRecord { command: "creel retry".into(), ..a_dead_owner() };
        let (first, mut heir) = (scene.run.owner.owner.clone(), second);
        heir.owner.process.started_ticks += 1;
        scene.take(&[created(), requested(), Event::VerifiedGone]).await;
        scene.ledger.claim_run(scene.run.id, &first, &heir).await.unwrap().unwrap();
        scene.run.owner = heir;
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 1);
        assert_eq!(scene.cause().await, Some(CauseClass::HubError));
    }

    #[tokio::test]
    async fn what_was_kept_of_a_run_that_is_over_is_certified_when_it_has_gone() {
        let enter = |phase| RunEvent::PhaseEntered { phase };
        let kept = RunEvent::Kept { until_ms: 9 };
        let ending = [kept, enter(Phase::Releasing), enter(Phase::Succeeded)];
        let scene = Scene::left_by_the_dead(OnOwnerDeath::Release, &ending).await;
        let taken = scene.take(&[created()]).await;
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 0);
        let gone = [(taken, requested()), (taken, Event::VerifiedGone)];
        scene.ledger.append(&gone).await.unwrap();
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 1);
        let state = scene.state().await;
        assert_eq!((state.phase, state.kept_until_ms), (Phase::Succeeded, None));
        assert!(state.certificate.unwrap().verified);
        assert_eq!(scene.reconciler().finish().await.unwrap().runs_closed, 0);
    }

    #[tokio::test]
    async fn a_run_of_a_live_driver_is_nobodys_business() {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(home.path()).await.unwrap();
        let run = a_run_of(me());
        Journal::begin(&ledger, &run).await.unwrap();
        let scene = Scene { _home: home, ledger, run };
        let status = scene.reconciler().round().await.unwrap();
        assert_eq!((status.runs_closed, status.runs_waiting), (0, 0));
        assert_eq!(scene.newest().await, 1);
    }

    fn record_of(run: RunId, owner: &OwnerRecord) -> RunRecord {
        RunRecord {
            id: run,
            name: "hello".into(),
            provider: crate::provider::ProviderName::Process,
            owner: owner.clone(),
            on_owner_death: OnOwnerDeath::Release,
            created_at_ms: 0,
            changed_at_ms: 0,
            state: RunState { phase: Phase::Running, attempt: 1, ..RunState::new() },
        }
    }

    #[test]
    fn a_driver_that_cannot_be_judged_is_believed() {
        let run = record_of(RunId::new(), &a_dead_owner());
        let fate_if =
            |liveness, inherited| fate(&run, &Evidence { liveness, taken: &[], inherited });
        assert_eq!(fate_if(Liveness::Unknown, false), Fate::Keep);
        assert_eq!(fate_if(Liveness::Alive, true), Fate::Keep);
        let by_lease = Fate::Close(CauseClass::LeaseExpired);
        assert_eq!(fate_if(Liveness::Unknown, true), by_lease);
        assert_eq!(fate_if(Liveness::Dead, false), Fate::Close(CauseClass::HubError));
    }
}
