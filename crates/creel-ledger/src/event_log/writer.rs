//! The writer of one run: log first, then row.

use std::sync::Arc;

use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::id::RunId;
use creel_model::owner::Owner;
use creel_model::run::{Logged, RunEvent, RunState};
use tokio::sync::broadcast;

use crate::{Ledger, LedgerError};

use super::{EventLog, RecordsError, Result};

/// Maximum number of pieces of agent output buffered before a write.
const MOST_PENDING: usize = 256;
/// Maximum number of bytes of agent output buffered before a write. The space reserved for a full
/// disk must be able to hold them.
const MOST_PENDING_BYTES: usize = 1 << 20;

/// Writes one run. Everything here happens under one lock, in a task that cannot be cancelled.
#[derive(Debug)]
pub(super) struct Writer {
    /// The run.
    pub(super) run: RunId,
    /// The driver of the run. Every save is fenced by it.
    pub(super) owner: Owner,
    /// The ledger that holds the row.
    pub(super) ledger: Ledger,
    /// The log that holds the events.
    pub(super) log: EventLog,
    /// The state of the run, including events that are not written yet.
    pub(super) state: RunState,
    /// Agent output that is buffered, to be written together.
    pub(super) pending: Vec<Logged>,
    /// The size of the buffered output in bytes.
    pub(super) pending_bytes: usize,
    /// Agent output beyond what the log of a run takes, not recorded yet.
    pub(super) dropped: Option<Dropped>,
    /// Whether the row lacks something that the log has.
    pub(super) is_row_behind: bool,
    /// The newest event of the spool that is on disk.
    pub(super) safe_spool: u64,
    /// Sends events to subscribers once they are on disk.
    pub(super) subscribers: broadcast::Sender<Arc<Logged>>,
}

/// An event to record.
#[derive(Debug, Clone)]
pub(super) struct PendingEvent {
    /// The event.
    pub(super) event: RunEvent,
    /// Its number in the bridge's spool, if it came from there.
    pub(super) spooled: Option<u64>,
}

/// Agent output that was dropped since the last write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dropped {
    turn: u32,
    pieces: u64,
    bytes: u64,
    /// The newest spool number among it.
    spooled: Option<u64>,
}

impl Writer {
    /// Returns whether an event of the spool is already recorded.
    fn is_known(&self, entry: &PendingEvent) -> bool {
        let dropped = self.dropped.and_then(|dropped| dropped.spooled).unwrap_or(0);
        entry.spooled.is_some_and(|number| number <= self.state.spooled.max(dropped))
    }

    fn number(&self, after: &RunState, entry: PendingEvent) -> Logged {
        let at_ms = self.ledger.clock().now().wall_ms;
        Logged { sequence: after.sequence + 1, at_ms, spooled: entry.spooled, event: entry.event }
    }

    fn illegal(&self, source: creel_model::run::IllegalEvent) -> RecordsError {
        RecordsError::Illegal { run: self.run, source }
    }

    /// Buffers agent output. Returns whether the buffer was empty before.
    ///
    /// Output beyond the limit of the run's log is only counted.
    pub(super) async fn buffer_output(&mut self, entry: PendingEvent) -> Result<bool> {
        if self.is_known(&entry) {
            return Ok(false);
        }
        let was_idle = self.pending.is_empty() && self.dropped.is_none();
        let size = bytes_of(&entry.event);
        if self.state.output.logged_bytes + size as u64 > self.ledger.text_limit() {
            self.drop_output(&entry, size as u64);
            return Ok(was_idle);
        }
        let is_full = self.pending.len() >= MOST_PENDING
            || self.pending_bytes + size > MOST_PENDING_BYTES && !self.pending.is_empty();
        if is_full {
            self.write_pending().await?;
        }
        // Output that was dropped earlier is recorded first.
        self.number_dropped()?;
        let logged = self.number(&self.state, entry);
        self.state.apply(&logged).map_err(|source| self.illegal(source))?;
        self.pending.push(logged);
        self.pending_bytes += size;
        Ok(was_idle)
    }

    fn drop_output(&mut self, entry: &PendingEvent, size: u64) {
        let RunEvent::Text { turn, .. } = entry.event else { return };
        let dropped =
            self.dropped.get_or_insert(Dropped { turn, pieces: 0, bytes: 0, spooled: None });
        dropped.turn = turn;
        dropped.pieces += 1;
        dropped.bytes += size;
        dropped.spooled = entry.spooled.or(dropped.spooled);
    }

    /// Turns the dropped output into one event, and buffers it.
    fn number_dropped(&mut self) -> Result<()> {
        let Some(dropped) = self.dropped else { return Ok(()) };
        let Dropped { turn, pieces, bytes, spooled } = dropped;
        let event = RunEvent::TextDropped { turn, pieces, bytes };
        let logged = self.number(&self.state, PendingEvent { event, spooled });
        self.state.apply(&logged).map_err(|source| self.illegal(source))?;
        self.dropped = None;
        self.pending.push(logged);
        Ok(())
    }

    /// Records events, all or none, after the buffered ones.
    pub(super) async fn write(&mut self, entries: Vec<PendingEvent>) -> Result<()> {
        let entries: Vec<PendingEvent> =
            entries.into_iter().filter(|entry| !self.is_known(entry)).collect();
        self.number_dropped()?;
        if entries.is_empty() {
            self.write_pending().await?;
            return if self.is_row_behind { self.bring_row_up().await } else { Ok(()) };
        }
        let mut next = self.state.clone();
        let mut fresh = Vec::with_capacity(entries.len());
        for entry in entries {
            let logged = self.number(&next, entry);
            next.apply(&logged).map_err(|source| self.illegal(source))?;
            fresh.push(logged);
        }
        let batch: Vec<Logged> = self.pending.iter().cloned().chain(fresh).collect();
        self.append(&batch).await?;
        self.state = next;
        self.written(batch);
        crashpoint::reach(Crashpoint::RunLoggedNotSaved);
        self.bring_row_up().await
    }

    async fn bring_row_up(&mut self) -> Result<()> {
        let saved = self.save_row().await;
        self.is_row_behind = saved.is_err();
        saved
    }

    /// Writes the buffered events. The row is not saved, because agent output changes nothing it
    /// shows.
    pub(super) async fn write_pending(&mut self) -> Result<()> {
        self.number_dropped()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        let batch = self.pending.clone();
        self.append(&batch).await?;
        self.written(batch);
        Ok(())
    }

    fn written(&mut self, batch: Vec<Logged>) {
        self.pending.clear();
        self.pending_bytes = 0;
        self.safe_spool = self.state.spooled;
        for logged in batch {
            // It is fine if there are no subscribers.
            let _ = self.subscribers.send(Arc::new(logged));
        }
    }

    async fn append(&self, batch: &[Logged]) -> Result<()> {
        self.log.append(self.run, batch).await
    }

    /// Saves the row. The save is fenced, so a driver that was replaced notices it here.
    pub(super) async fn save_row(&self) -> Result<()> {
        match self.ledger.save_run(self.run, &self.owner, &self.state).await {
            Ok(()) => Ok(()),
            Err(error @ (LedgerError::NotOwner { .. } | LedgerError::UnknownRun { .. })) => {
                Err(error.into())
            }
            Err(source) => Err(RecordsError::RowBehind { run: self.run, source }),
        }
    }
}

fn bytes_of(event: &RunEvent) -> usize {
    match event {
        RunEvent::Text { text, .. } => text.as_str().len(),
        _ => 0,
    }
}
