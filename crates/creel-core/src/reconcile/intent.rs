//! Unanswered creates: whether they can still complete, and until when.

use creel_ledger::{Event, LedgerError, Record, SearchStatus};
use creel_model::clock::millis;
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::provider::{Kind, Provider, ProviderName};
use jiff::Timestamp;
use serde::Serialize;
use tracing::info;

use super::{Reconciler, Status};

/// The evidence for a create whose window has passed.
const WINDOW_PASSED: &str = "nothing of its name or label appeared within the window";
/// The evidence for a create that only the dead caller itself could have completed.
const CALLER_DIED: &str = "the process that would have made it has died, and nothing of it is here";

/// Whether an unanswered create may still complete late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateCreate {
    /// It may, within this many milliseconds.
    Within(i64),
    /// It may, and the time searched so far is unknown: a full window begins.
    Restarted,
    /// It no longer can. Contains the evidence.
    Never(&'static str),
}

/// An unanswered create that is still searched for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingCreate {
    /// The resource.
    pub resource: ResourceId,
    /// The provider that should have created it.
    pub provider: ProviderName,
    /// The intended kind.
    pub kind: Kind,
    /// The intended name.
    pub name: String,
    /// When the search ends.
    pub until: Timestamp,
}

impl Reconciler {
    /// Determines whether an unanswered create may still complete.
    pub(super) fn late_create(&self, record: &Record, provider: &dyn Provider) -> LateCreate {
        // The owner on record may be an heir. The label names the original caller.
        let caller = labels::claimed_owner(&record.labels);
        if provider.creates_end_with_caller() && caller.is_some_and(|owner| owner.has_ended()) {
            return LateCreate::Never(CALLER_DIED);
        }
        let boot = &self.me.owner.boot;
        match record.search.status(self.intent_window, self.clock.now(), boot) {
            SearchStatus::Open { left_ms } => LateCreate::Within(left_ms),
            SearchStatus::Restart => LateCreate::Restarted,
            SearchStatus::Ended => LateCreate::Never(WINDOW_PASSED),
        }
    }

    /// Notes a create that is still searched for, and restarts its search if required.
    pub(super) async fn note_waiting(
        &self,
        record: &Record,
        late_create: LateCreate,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let now = self.clock.now();
        let left_ms = match late_create {
            LateCreate::Within(left_ms) => left_ms,
            LateCreate::Restarted | LateCreate::Never(_) => millis(self.intent_window),
        };
        if late_create == LateCreate::Restarted {
            info!(resource = %record.id, "searching for an unanswered create with a full window");
            match self.ledger.append(&[(record.id, Event::SearchRestarted { from: now })]).await {
                // Its response arrived in the meantime, or another process closed it.
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
