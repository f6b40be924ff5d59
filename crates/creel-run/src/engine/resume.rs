//! Resuming a run: finds the recorded sandbox, and continues where the previous driver stopped.

use creel_ledger::{Event, LedgerError, Record, RecordFilter, ResourceState};
use creel_model::clock::millis;
use creel_model::run::{CauseClass, Connection};
use tracing::warn;

use super::{Drive, Stopped};

impl Drive {
    /// Connects to the sandbox of an attempt that another process began.
    pub(super) async fn reopen(&mut self) -> Result<(), Stopped> {
        let ours = self.ours().await.map_err(|error| self.unreadable(&error))?;
        match self.context.sandboxes.open(&ours, self.environment()).await {
            Ok(sandbox) => {
                self.sandbox = Some(sandbox);
                self.held = ours
                    .iter()
                    .filter_map(|record| self.context.supervisor.hold_again(record))
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

    /// Connects to the sandbox for its teardown. A sandbox that is gone needs none.
    pub(super) async fn reopen_to_release(&mut self) -> Result<(), Stopped> {
        match self.reopen().await {
            Err(Stopped::Cause(cause)) => {
                warn!(message = %cause.message, "there is nothing to tear down");
                Ok(())
            }
            other => other,
        }
    }

    /// Takes over what an earlier attempt kept. From now on it belongs to this process again.
    pub(super) async fn use_again(&mut self) -> Result<(), Stopped> {
        let lease_ms = millis(self.workflow.sandbox.lease);
        let reused: Vec<_> =
            self.held.iter().map(|held| (held.resource, Event::Reused { lease_ms })).collect();
        self.context.ledger.append(&reused).await.map_err(|error| self.unreadable(&error))?;
        Ok(())
    }

    /// Releases what an earlier driver of this run left.
    ///
    /// What cannot be released now is released at the end, with everything else of the run.
    pub(super) async fn release_earlier(&mut self) -> Result<(), Stopped> {
        let run = self.journal.run();
        let status = self.context.supervisor.release_run(run).await;
        let status = status.map_err(|error| self.unreadable(&error))?;
        if !status.is_settled() {
            warn!("not everything of an earlier driver is gone yet");
        }
        Ok(())
    }

    /// Returns the existing resources of this run, newest first: a tree before its directory.
    async fn ours(&self) -> Result<Vec<Record>, LedgerError> {
        let mut records =
            self.context.ledger.records(&RecordFilter::of_run(self.journal.run())).await?;
        records.retain(|record| matches!(record.state, ResourceState::Created { .. }));
        records.sort_by_key(|record| std::cmp::Reverse(record.id));
        Ok(records)
    }

    fn unreadable(&self, error: &LedgerError) -> Stopped {
        self.stopped(CauseClass::HubError, &error.to_string())
    }
}
