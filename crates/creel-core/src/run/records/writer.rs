//! The hand that writes one run: log first, then row.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::crashpoint::{self, Crashpoint};
use crate::id::RunId;
use crate::ledger::{Ledger, LedgerError};
use crate::owner::Owner;
use crate::run::{Logged, RunEvent, RunState};

use super::{EventLog, RecordsError, Result};

/// Maximum number of pieces of agent output buffered before a write.
const MOST_PENDING: usize = 256;
/// Maximum number of bytes of agent output buffered before a write. The space kept for a full disk
/// has to take them.
const MOST_PENDING_BYTES: usize = 1 << 20;

/// Writes one run. Everything here happens under one lock, in a task that nobody can cut.
#[derive(Debug)]
pub(super) struct Writer {
    /// The run.
    pub(super) run: RunId,
    /// Who drives it: every save is fenced by this.
    pub(super) owner: Owner,
    /// Where its row is.
    pub(super) ledger: Ledger,
    /// Where its events are.
    pub(super) log: EventLog,
    /// What its events have made of it, those that wait included.
    pub(super) state: RunState,
    /// Words of the agent that wait to be written together.
    pub(super) pending: Vec<Logged>,
    /// How many bytes that is.
    pub(super) pending_bytes: usize,
    /// Agent output beyond what the log of a run takes, not recorded yet.
    pub(super) dropped: Option<Dropped>,
    /// Whether the row lacks something that the log has.
    pub(super) is_row_behind: bool,
    /// The newest event of the spool that is on disk.
    pub(super) safe_spool: u64,
    /// Who wants to hear of events once they are on disk.
    pub(super) told: broadcast::Sender<Arc<Logged>>,
}

/// What somebody wants recorded.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// What happened.
    pub(super) event: RunEvent,
    /// Its number in the spool of the bridge, where it came from there.
    pub(super) spooled: Option<u64>,
}

/// Agent output that was dropped since the last write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dropped {
    turn: u32,
    pieces: u64,
    bytes: u64,
    /// The newest number in the spool among it.
    spooled: Option<u64>,
}

impl Writer {
    /// Returns whether an event of the spool is held already.
    fn is_known(&self, entry: &Entry) -> bool {
        let dropped = self.dropped.and_then(|dropped| dropped.spooled).unwrap_or(0);
        entry.spooled.is_some_and(|number| number <= self.state.spooled.max(dropped))
    }

    fn number(&self, after: &RunState, entry: Entry) -> Logged {
        let at_ms = self.ledger.clock().now().wall_ms;
        Logged { sequence: after.sequence + 1, at_ms, spooled: entry.spooled, event: entry.event }
    }

    fn illegal(&self, source: crate::run::IllegalEvent) -> RecordsError {
        RecordsError::Illegal { run: self.run, source }
    }

    /// Takes agent output, which may wait for more; returns whether it is the first that waits.
    /// What is beyond the limit of the run's log is counted instead.
    pub(super) async fn take_words(&mut self, entry: Entry) -> Result<bool> {
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
        // What was dropped before comes first.
        self.number_dropped()?;
        let logged = self.number(&self.state, entry);
        self.state.apply(&logged).map_err(|source| self.illegal(source))?;
        self.pending.push(logged);
        self.pending_bytes += size;
        Ok(was_idle)
    }

    fn drop_output(&mut self, entry: &Entry, size: u64) {
        let RunEvent::Text { turn, .. } = entry.event else { return };
        let dropped =
            self.dropped.get_or_insert(Dropped { turn, pieces: 0, bytes: 0, spooled: None });
        dropped.turn = turn;
        dropped.pieces += 1;
        dropped.bytes += size;
        dropped.spooled = entry.spooled.or(dropped.spooled);
    }

    /// Makes one event of what was dropped, and lets it wait with the rest.
    fn number_dropped(&mut self) -> Result<()> {
        let Some(dropped) = self.dropped else { return Ok(()) };
        let Dropped { turn, pieces, bytes, spooled } = dropped;
        let event = RunEvent::TextDropped { turn, pieces, bytes };
        let logged = self.number(&self.state, Entry { event, spooled });
        self.state.apply(&logged).map_err(|source| self.illegal(source))?;
        self.dropped = None;
        self.pending.push(logged);
        Ok(())
    }

    /// Records events, all or none, with everything that waits before them.
    pub(super) async fn take(&mut self, entries: Vec<Entry>) -> Result<()> {
        let entries: Vec<Entry> =
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

    /// Writes what waits. The row is left as it is: words change nothing that it shows.
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
            // Nobody has to listen.
            let _ = self.told.send(Arc::new(logged));
        }
    }

    async fn append(&self, batch: &[Logged]) -> Result<()> {
        self.log.append(self.run, batch).await
    }

    /// Saves the row; fenced, so that a driver that was replaced learns of it here.
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
