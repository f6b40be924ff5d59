//! Asking for many containers at once.
//!
//! Whoever releases a hundred containers has a hundred absences to verify, while the engine is
//! busy with the next removals. So looks at the same time share one list by ids: one is under
//! way at a time, and those that come meanwhile are in the next. What the list does not have,
//! the engine does not have. What it has is left to a look of its own, as is everything when
//! the list fails.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use super::connection::Connection;
use super::encode::is_whole_id;
use super::model::ContainerRow;

/// How many are asked for at once: their ids are part of the request's target.
const MOST: usize = 64;

/// The looks that wait for the next list.
#[derive(Debug, Default)]
pub(super) struct RollCall {
    waiting: Mutex<Vec<Look>>,
    /// Held by whoever asks for all that wait.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Look {
    id: String,
    answer: oneshot::Sender<bool>,
}

impl RollCall {
    /// Returns whether the engine surely has no such container; `false` says nothing.
    pub(super) async fn is_absent(&self, connection: &Connection, id: &str) -> bool {
        // Podman reads an id in a filter as a pattern, and has its own mind about states.
        if !is_whole_id(id) || !matches!(connection.is_podman().await, Ok(false)) {
            return false;
        }
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push(Look { id: id.to_owned(), answer });
        loop {
            tokio::select! {
                biased;
                // The asker may have been dropped with its question: then nobody knows.
                answer = &mut answered => return answer.unwrap_or(false),
                _turn = self.turn.lock() => self.ask(connection).await,
            }
        }
    }

    /// Asks for those that have waited longest, and tells each of them.
    async fn ask(&self, connection: &Connection) {
        let looks: Vec<Look> = {
            let mut waiting = self.waiting();
            let count = waiting.len().min(MOST);
            waiting.drain(..count).collect()
        };
        let there = present(connection, &looks).await;
        for look in looks {
            let absent = there.as_ref().is_some_and(|there| !there.contains(&look.id));
            // Whoever does not wait any more does not need it.
            let _ = look.answer.send(absent);
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Look>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the ids of those that the engine has; `None` when it cannot be told.
async fn present(connection: &Connection, looks: &[Look]) -> Option<HashSet<String>> {
    let ids: Vec<&str> = looks.iter().map(|look| look.id.as_str()).collect();
    let filters = serde_json::json!({ "id": ids }).to_string();
    let query = [("all", "1"), ("filters", filters.as_str())];
    let mut there = HashSet::new();
    let each = |row: ContainerRow| {
        there.insert(row.id);
    };
    connection.rows("/containers/json", &query, each).await.ok().map(|()| there)
}
