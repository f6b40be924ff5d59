//! Creates whose answer never came: whether they can still land, and until when.

use jiff::Timestamp;
use serde::Serialize;
use tracing::info;

use crate::clock::millis;
use crate::id::ResourceId;
use crate::labels;
use crate::ledger::{Event, LedgerError, Record, SearchStatus};
use crate::provider::{Kind, Provider, ProviderName};

use super::{Reconciler, Status};

/// Said of a create whose window has passed.
const WINDOW_PASSED: &str = "nothing of its name or label appeared within the window";
/// Said of a create that the dead caller would have had to make itself.
const CALLER_DIED: &str = "the process that would have made it has died, and nothing of it is here";

/// Whether an unanswered create may still land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    /// It may, for this many milliseconds.
    Within(i64),
    /// It may, and how long it was searched for is not known: a full window begins.
    Restarted,
    /// It cannot any more: how that is known.
    Never(&'static str),
}

/// An unanswered create that is still searched for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingCreate {
    /// The resource.
    pub resource: ResourceId,
    /// Where it was to be made.
    pub provider: ProviderName,
    /// What it was to be.
    pub kind: Kind,
    /// The name it was to have.
    pub name: String,
    /// When the search ends.
    pub until: Timestamp,
}

impl Reconciler {
    /// Judges whether an unanswered create may still land.
    pub(super) fn landing(&self, record: &Record, provider: &dyn Provider) -> Landing {
        // The owner on record may be an heir: the label names who made the call.
        let caller = labels::claimed_owner(&record.labels);
        if provider.creates_end_with_caller() && caller.is_some_and(|owner| owner.has_ended()) {
            return Landing::Never(CALLER_DIED);
        }
        let boot = &self.me.owner.boot;
        match record.search.status(self.intent_window, self.clock.now(), boot) {
            SearchStatus::Open { left_ms } => Landing::Within(left_ms),
            SearchStatus::Restart => Landing::Restarted,
            SearchStatus::Ended => Landing::Never(WINDOW_PASSED),
        }
    }

    /// Notes a create that is still searched for, and starts its search again where that is due.
    pub(super) async fn note_waiting(
        &self,
        record: &Record,
        landing: Landing,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let now = self.clock.now();
        let left_ms = match landing {
            Landing::Within(left_ms) => left_ms,
            Landing::Restarted | Landing::Never(_) => millis(self.intent_window),
        };
        if landing == Landing::Restarted {
            info!(resource = %record.id, "searching for an unanswered create with a full window");
            match self.ledger.append(&[(record.id, Event::SearchRestarted { from: now })]).await {
                // Its answer came meanwhile, or another process closed it.
                Ok(_) | Err(LedgerError::Illegal { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let until = Timestamp::from_millisecond(now.wall_ms.saturating_add(left_ms));
        status.open_intents += 1;
        status.waiting.push(WaitingCreate {
            resource: record.id,
            provider: record.provider,
            kind: record.kind,
            name: record.name.clone(),
            until: until.unwrap_or(Timestamp::MAX),
        });
        Ok(())
    }
}
