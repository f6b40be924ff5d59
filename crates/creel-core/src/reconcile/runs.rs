//! Runs whose driver died: closed with a named cause, once all they took is accounted for.
//!
//! Nothing is closed while something of the run may still be there: the records
//! of its resources are the evidence, and the certificate is made of them. What
//! will not go is named in it.

use tracing::{info, warn};

use crate::ledger::{
    LedgerError, OnOwnerDeath, Record, RecordFilter, RunFilter, RunRecord, StateName,
};
use crate::owner::{Liveness, Owner};
use crate::reap::Entry;
use crate::run::records::{Journal, RecordsError};
use crate::run::{AttemptFrom, Cause, CauseClass, Certified, Phase, RunEvent, RunState};
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

/// Decides about a run from its row, its owner's life and the records of what it took.
///
/// An owner that cannot be judged is believed until somebody took over what it held, which
/// happens only when the lease has ended.
fn fate(run: &RunRecord, liveness: Liveness, taken: &[Record]) -> Fate {
    let is_open = |record: &Record| {
        record.state.name().is_open() && record.state.name() != StateName::Quarantined
    };
    let was_inherited = taken.iter().any(|record| record.owner.owner != run.owner.owner);
    let (by_lease, is_releasing) = (CauseClass::LeaseExpired, run.state.phase == Phase::Releasing);
    match (liveness, run.on_owner_death) {
        (Liveness::Alive, _) => Fate::Keep,
        (Liveness::Unknown, _) if !was_inherited => Fate::Keep,
        _ if taken.iter().any(is_open) => still_there(run),
        _ if run.state.phase.is_final() => Fate::Certify,
        (Liveness::Unknown, _) => Fate::Close(by_lease),
        // What a dead owner held goes to another one when its lease has ended, or when the dead
        // one had begun to give it back.
        (Liveness::Dead, OnOwnerDeath::Hold) if was_inherited && !is_releasing => {
            Fate::Close(by_lease)
        }
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
            match fate(&run, liveness, &taken) {
                Fate::Keep => {}
                Fate::Wait => status.runs_waiting += 1,
                Fate::Close(class) => self.close_run(&run, Some(class), &taken, status).await?,
                Fate::Certify => self.close_run(&run, None, &taken, status).await?,
            }
        }
        Ok(())
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
        name: record.name.clone(),
    }
}
