//! The hand that writes one run: log first, then row.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::crashpoint::{self, Crashpoint};
use crate::id::RunId;
use crate::ledger::{Ledger, LedgerError};
use crate::owner::Owner;
use crate::run::{Logged, RunEvent, RunState};

use super::{EventLog, RecordsError, Result};

/// How many words of the agent wait for company at most.
const MOST_PENDING: usize = 256;

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

impl Writer {
    /// Returns whether an event of the spool is held already.
    fn is_known(&self, entry: &Entry) -> bool {
        entry.spooled.is_some_and(|number| number <= self.state.spooled)
    }

    fn number(&self, after: &RunState, entry: Entry) -> Logged {
        let at_ms = self.ledger.clock().now().wall_ms;
        Logged { sequence: after.sequence + 1, at_ms, spooled: entry.spooled, event: entry.event }
    }

    fn illegal(&self, source: crate::run::IllegalEvent) -> RecordsError {
        RecordsError::Illegal { run: self.run, source }
    }

    /// Takes words of the agent, which may wait for others; returns whether they are the first
    /// that wait.
    pub(super) async fn take_words(&mut self, entry: Entry) -> Result<bool> {
        if self.is_known(&entry) {
            return Ok(false);
        }
        if self.pending.len() >= MOST_PENDING {
            self.write_pending().await?;
        }
        let logged = self.number(&self.state, entry);
        self.state.apply(&logged).map_err(|source| self.illegal(source))?;
        self.pending.push(logged);
        Ok(self.pending.len() == 1)
    }

    /// Records events, all or none, with everything that waits before them.
    pub(super) async fn take(&mut self, entries: Vec<Entry>) -> Result<()> {
        let mut next = self.state.clone();
        let mut fresh = Vec::with_capacity(entries.len());
        for entry in entries.into_iter().filter(|entry| !self.is_known(entry)) {
            let logged = self.number(&next, entry);
            next.apply(&logged).map_err(|source| self.illegal(source))?;
            fresh.push(logged);
        }
        if fresh.is_empty() {
            return self.write_pending().await;
        }
        let batch: Vec<Logged> = self.pending.iter().cloned().chain(fresh).collect();
        self.append(&batch).await?;
        self.state = next;
        self.written(batch);
        crashpoint::reach(Crashpoint::RunLoggedNotSaved);
        self.save_row().await
    }

    /// Writes what waits. The row is left as it is: words change nothing that it shows.
    pub(super) async fn write_pending(&mut self) -> Result<()> {
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
