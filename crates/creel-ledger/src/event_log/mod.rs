//! Records of runs: the log of events, and the one writer of each run.
//!
//! ```text
//!   record ─▶ check ─▶ append to events.db ─▶ save the row in ledger.db ─▶ done
//!            (state)       (the truth)          (for quick reading)
//! ```
//!
//! The log is written first and the row after it, so a crash leaves a row that is
//! behind its log, never ahead of it. The next owner of the run replays the
//! events that the row lacks, with the same function that first computed the state.
//!
//! Two processes that both believe they drive a run cannot both write it. The row
//! is fenced by its owner, and every event number is used only once.

mod follow;
mod journal;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::error::RecordsError;
pub use crate::sqlite::EventLog;
pub use follow::LogWatch;
pub use journal::Journal;

use creel_model::id::RunId;
use creel_model::owner::Liveness;
use creel_model::run::{Logged, RunEvent};
use creel_model::run::{OutputCount, RunState};
use tracing::warn;

use crate::ledger::Ledger;
use crate::run::{RunFilter, RunRecord};

/// The result of an operation on the records of a run.
pub type Result<T> = std::result::Result<T, RecordsError>;

/// The number of events read at once.
const PAGE: u32 = 512;

/// Returns a run as its log has it, which may be ahead of its row. Writes nothing.
///
/// # Errors
///
/// Fails when ledger or log cannot be read.
pub async fn current(ledger: &Ledger, run: RunId) -> Result<Option<RunRecord>> {
    let Some(mut record) = ledger.run(run).await? else { return Ok(None) };
    catch_up(ledger.event_log().await?, run, &mut record.state).await?;
    Ok(Some(record))
}

/// Checks that replaying the log of every run gives its row.
///
/// Returns one sentence for each run where it does not.
///
/// # Errors
///
/// Fails when ledger or log cannot be read.
pub async fn check(ledger: &Ledger) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for record in ledger.runs(&RunFilter::default()).await? {
        problems.extend(problem_of(ledger.event_log().await?, &record).await?);
    }
    Ok(problems)
}

/// A range of events that the log of a run has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostEvents {
    /// The run.
    pub run: RunId,
    /// The number of the first lost event.
    pub first: u64,
    /// The number of the last lost event.
    pub last: u64,
}

/// Returns the events that the logs have lost, for runs that are over or whose driver is dead.
///
/// A live driver detects the loss itself.
///
/// # Errors
///
/// Fails when ledger or log cannot be read.
pub async fn lost_events(ledger: &Ledger) -> Result<Vec<LostEvents>> {
    let mut lost = Vec::new();
    for record in ledger.runs(&RunFilter::default()).await? {
        if record.state.phase.is_final() || record.owner_liveness() == Liveness::Dead {
            lost.extend(lost_of(ledger, &record).await?);
        }
    }
    Ok(lost)
}

async fn lost_of(ledger: &Ledger, record: &RunRecord) -> Result<Option<LostEvents>> {
    let (run, last) = (record.id, record.state.sequence);
    let newest = ledger.event_log().await?.newest(run).await?;
    Ok((newest < last).then_some(LostEvents { run, first: newest + 1, last }))
}

/// Records in the log of a run which events it has lost, so that the run can continue from its row.
///
/// # Errors
///
/// Fails when ledger or log cannot be used.
pub async fn note_lost_events(ledger: &Ledger, record: &RunRecord) -> Result<()> {
    let Some(LostEvents { run, first, last }) = lost_of(ledger, record).await? else {
        return Ok(());
    };
    warn!(run_id = %run, first, last, "the log of a run has lost events");
    let state = Box::new(record.state.clone());
    let event = RunEvent::EventsLost { first, last, state };
    let at_ms = ledger.clock().now().wall_ms;
    let logged = Logged { sequence: last + 1, at_ms, spooled: None, event };
    ledger.event_log().await?.append(run, &[logged]).await
}

async fn problem_of(log: &EventLog, record: &RunRecord) -> Result<Option<String>> {
    let (run, mut held) = (record.id, record.state.clone());
    let mut replayed = RunState::new();
    while replayed.sequence < held.sequence {
        let missing = u32::try_from(held.sequence - replayed.sequence).unwrap_or(PAGE);
        let events = log.read(run, replayed.sequence + 1, missing.min(PAGE)).await?;
        if events.is_empty() {
            let error =
                RecordsError::Incomplete { run, logged: replayed.sequence, held: held.sequence };
            return Ok(Some(error.to_string()));
        }
        for logged in &events {
            // After a loss, the log continues beyond what the row has.
            let is_ahead = logged.sequence > held.sequence;
            let applied = replayed.apply(logged);
            let applied = applied.and_then(|()| if is_ahead { held.apply(logged) } else { Ok(()) });
            if let Err(illegal) = applied {
                return Ok(Some(format!("{run}: its events do not fit together: {illegal}")));
            }
        }
    }
    // Rows of older versions do not have the count.
    if held.output == OutputCount::default() {
        replayed.output = held.output;
    }
    let differs = replayed != held;
    Ok(differs.then(|| format!("{run} is stored otherwise than its events make it")))
}

/// Returns the state that the events of a run produce.
///
/// Also returns when the first and the newest event were written, in milliseconds since the epoch.
///
/// # Errors
///
/// Fails when the log cannot be read, or when its events are inconsistent.
pub async fn replay(log: &EventLog, run: RunId) -> Result<(RunState, i64, i64)> {
    let mut state = RunState::new();
    catch_up(log, run, &mut state).await?;
    let at_ms = |events: Vec<Logged>| events.first().map_or(0, |logged| logged.at_ms);
    let began_at_ms = at_ms(log.read(run, 1, 1).await?);
    let changed_at_ms = at_ms(log.read(run, state.sequence, 1).await?);
    Ok((state, began_at_ms, changed_at_ms))
}

/// Applies the events that the log has beyond a state.
async fn catch_up(log: &EventLog, run: RunId, state: &mut RunState) -> Result<()> {
    loop {
        let events = log.read(run, state.sequence + 1, PAGE).await?;
        if events.is_empty() {
            return Ok(());
        }
        for logged in &events {
            state.apply(logged).map_err(|source| RecordsError::Illegal { run, source })?;
        }
    }
}
