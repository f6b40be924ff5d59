//! The one place that asks a provider to release something.
//!
//! Every request that is sent has a row in the audit with what allowed it, also
//! one whose answer nobody waits for any more: the row is written when the
//! request ends, however it ends.

use crate::plan::PlanItem;
use crate::provider::{ErrorClass, IdentityCheck, Provider, ProviderError, ReleaseMode, Released};

use super::audit::Audit;
use super::item::{Job, try_of};
use super::warrant::Warrant;

/// What the rows of releases are called in the audit.
pub(super) const RELEASE: &str = "release";

/// What the provider said to the request.
pub(super) enum Ordered {
    /// It took it.
    Taken(Released),
    /// The object is busy; this is what was said.
    Busy(ProviderError),
    /// The object is not the expected one any more, and was left alone.
    Refused(IdentityCheck),
}

/// The row of one request; it is written when this is dropped.
struct Row<'a> {
    audit: &'a Audit,
    item: &'a PlanItem,
    evidence: &'a str,
    attempt: u32,
    outcome: &'static str,
    detail: String,
}

impl Drop for Row<'_> {
    fn drop(&mut self) {
        let row = try_of(self.item, RELEASE, self.attempt, self.outcome, &self.detail);
        self.audit.note(crate::ledger::Try { evidence: Some(self.evidence.into()), ..row });
    }
}

impl Job<'_> {
    /// Asks for the end of an object that the warrant speaks of. `is_fresh` says that it was
    /// looked at just now.
    pub(super) async fn send(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        mode: &ReleaseMode,
        (warrant, attempt, is_fresh): (&Warrant, u32, bool),
    ) -> Result<Ordered, ProviderError> {
        let (kind, id) = (item.seen.kind, item.seen.id.as_str());
        if warrant.can_expire() && !is_fresh {
            let Some(seen) = provider.inspect(kind, id).await? else {
                return Ok(Ordered::Taken(Released::AlreadyGone));
            };
            if let Some(refused) = seen.identity().and_then(|now| warrant.check(&now)) {
                return Ok(Ordered::Refused(refused));
            }
        }
        let mut row = Row {
            audit: self.audit,
            item,
            evidence: &warrant.evidence,
            attempt,
            outcome: "unanswered",
            detail: String::new(),
        };
        #[expect(clippy::disallowed_methods, reason = "this is the place that writes the audit")]
        let answer = provider.release(kind, id, mode.clone()).await;
        match answer {
            Ok(Released::Kept(check)) => {
                row.outcome = "kept";
                Ok(Ordered::Refused(check))
            }
            Ok(released) => {
                row.outcome = "ok";
                Ok(Ordered::Taken(released))
            }
            Err(error) => {
                row.outcome = error.class.name();
                row.detail.clone_from(&error.message);
                match error.class {
                    ErrorClass::Gone => Ok(Ordered::Taken(Released::AlreadyGone)),
                    // Somebody else is at it: watch instead of asking again.
                    ErrorClass::InProgress => Ok(Ordered::Busy(error)),
                    _ => Err(error),
                }
            }
        }
    }
}
