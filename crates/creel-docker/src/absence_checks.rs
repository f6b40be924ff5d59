//! Batches concurrent checks for the absence of containers.
//!
//! Releasing a hundred containers means verifying a hundred absences, while the engine is busy with
//! the next removals. So concurrent checks share one list by ids. One list request is in progress
//! at a time, and checks that arrive meanwhile join the next one. A container that is not in the
//! list does not exist. A container that is in the list is inspected individually, and so is every
//! container when the list fails.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use super::connection::EngineConnection;
use super::encode::is_whole_id;
use super::model::ContainerRow;

/// Maximum number of ids per list. They are part of the request's target.
const MOST: usize = 64;

/// The checks that wait for the next list.
#[derive(Debug, Default)]
pub(super) struct AbsenceChecks {
    waiting: Mutex<Vec<AbsenceCheck>>,
    /// Held by the caller that sends the list request for all waiting checks.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct AbsenceCheck {
    id: String,
    reply: oneshot::Sender<bool>,
}

impl AbsenceChecks {
    /// Returns whether the engine certainly has no such container. `false` proves nothing.
    pub(super) async fn is_absent(&self, connection: &EngineConnection, id: &str) -> bool {
        // Podman reads an id in a filter as a pattern, and handles states differently.
        if !is_whole_id(id) || !matches!(connection.is_podman().await, Ok(false)) {
            return false;
        }
        let (reply, mut result) = oneshot::channel();
        self.waiting().push(AbsenceCheck { id: id.to_owned(), reply });
        loop {
            tokio::select! {
                biased;
                // The caller that ran the list may have been dropped. Then the result is unknown.
                reply = &mut result => return reply.unwrap_or(false),
                _turn = self.turn.lock() => self.list_waiting(connection).await,
            }
        }
    }

    /// Lists the containers that have waited longest, and sends each check its result.
    async fn list_waiting(&self, connection: &EngineConnection) {
        let checks: Vec<AbsenceCheck> = {
            let mut waiting = self.waiting();
            let count = waiting.len().min(MOST);
            waiting.drain(..count).collect()
        };
        let there = present(connection, &checks).await;
        for check in checks {
            let absent = there.as_ref().is_some_and(|there| !there.contains(&check.id));
            // The caller may no longer wait for the result.
            let _ = check.reply.send(absent);
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<AbsenceCheck>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the ids of the containers that exist, or `None` when the list fails.
async fn present(
    connection: &EngineConnection,
    checks: &[AbsenceCheck],
) -> Option<HashSet<String>> {
    let ids: Vec<&str> = checks.iter().map(|check| check.id.as_str()).collect();
    let filters = serde_json::json!({ "id": ids }).to_string();
    let query = [("all", "1"), ("filters", filters.as_str())];
    let mut there = HashSet::new();
    let each = |row: ContainerRow| {
        there.insert(row.id);
    };
    connection.rows("/containers/json", &query, each).await.ok().map(|()| there)
}
