//! A driver that comes back: finds the sandbox on record, and goes on where the other one stopped.

use tracing::warn;

use crate::clock::millis;
use crate::ledger::{Event, LedgerError, Record, RecordFilter, State};
use crate::run::{CauseClass, Connection};

use super::{Drive, Stopped};

impl Drive {
    /// Opens the way into the sandbox of an attempt that another process began.
    pub(super) async fn reopen(&mut self) -> Result<(), Stopped> {
        let ours = self.ours().await.map_err(|error| self.unreadable(&error))?;
        match self.means.sandboxes.open(&ours, self.environment()).await {
            Ok(sandbox) => {
                self.sandbox = Some(sandbox);
                self.held = ours
                    .iter()
                    .filter_map(|record| self.means.supervisor.hold_again(record))
                    .collect();
                self.has_bridge = self.journal.state().turns > 0;
                self.connect(Connection::Reconnecting).await
            }
            Err(error) => {
                let message = format!("the sandbox could not be found again: {error}");
                Err(self.stopped(CauseClass::SandboxLost, &message))
            }
        }
    }

    /// Opens the sandbox for its teardown; one that is gone needs none.
    pub(super) async fn reopen_to_release(&mut self) -> Result<(), Stopped> {
        match self.reopen().await {
            Err(Stopped::Cause(cause)) => {
                warn!(message = %cause.message, "there is nothing to tear down");
                Ok(())
            }
            other => other,
        }
    }

    /// Takes what an earlier attempt kept into use again: from here it goes with this process.
    pub(super) async fn use_again(&mut self) -> Result<(), Stopped> {
        let lease_ms = millis(self.workflow.sandbox.lease);
        let reused: Vec<_> =
            self.held.iter().map(|held| (held.resource, Event::Reused { lease_ms })).collect();
        self.means.ledger.append(&reused).await.map_err(|error| self.unreadable(&error))?;
        Ok(())
    }

    /// Gives back what an earlier driver of this run left. What does not go now goes at the end,
    /// when everything of the run does.
    pub(super) async fn give_back_earlier(&mut self) -> Result<(), Stopped> {
        let run = self.journal.run();
        let status = self.means.supervisor.release_run(run).await;
        let status = status.map_err(|error| self.unreadable(&error))?;
        if !status.is_settled() {
            warn!("not everything of an earlier driver is gone yet");
        }
        Ok(())
    }

    /// Returns what stands for this run, the newest first: a tree before the directory it runs in.
    async fn ours(&self) -> Result<Vec<Record>, LedgerError> {
        let mut records =
            self.means.ledger.records(&RecordFilter::of_run(self.journal.run())).await?;
        records.retain(|record| matches!(record.state, State::Created { .. }));
        records.sort_by_key(|record| std::cmp::Reverse(record.id));
        Ok(records)
    }

    fn unreadable(&self, error: &LedgerError) -> Stopped {
        self.stopped(CauseClass::HubError, &error.to_string())
    }
}
