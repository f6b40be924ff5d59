//! A driver that comes back: finds the sandbox on record, and goes on with the turns.

use crate::ledger::{RecordFilter, State};
use crate::run::{CauseClass, Connection};

use super::{Drive, Stopped};

impl Drive {
    /// Opens the way into the sandbox of an attempt that another process began.
    pub(super) async fn reopen(&mut self) -> Result<(), Stopped> {
        let run = self.journal.run();
        let open = self.means.ledger.records(&RecordFilter::open()).await;
        let records =
            open.map_err(|error| self.stopped(CauseClass::HubError, &error.to_string()))?;
        let ours: Vec<_> = records
            .into_iter()
            .filter(|record| {
                record.run == Some(run) && matches!(record.state, State::Created { .. })
            })
            .collect();
        match self.means.sandboxes.open(&ours, self.environment()).await {
            Ok(sandbox) => {
                self.sandbox = Some(sandbox);
                self.held = ours
                    .iter()
                    .filter_map(|record| self.means.supervisor.hold_again(record))
                    .collect();
                self.connect(Connection::Reconnecting).await
            }
            Err(error) => {
                let message = format!("the sandbox could not be found again: {error}");
                Err(self.stopped(CauseClass::SandboxLost, &message))
            }
        }
    }
}
