//! The only place that sends a release request to a provider.
//!
//! Every request that is sent has an audit row with the evidence that allowed it. The row is
//! written when the request ends, however it ends, even if no caller waits for the response any
//! more.

use std::sync::Arc;

use creel_model::provider::{
    ErrorClass, IdentityCheck, Provider, ProviderError, ReleaseMode, Released,
};

use crate::plan::PlanItem;

use super::audit::Audit;
use super::authorization::Authorization;
use super::item::{Job, try_of};

/// The operation name of releases in the audit.
pub(super) const RELEASE: &str = "release";

/// The provider's response to the request.
pub(super) enum SendResult {
    /// It accepted the request.
    Accepted(Released),
    /// The object is busy; this is the provider's error.
    Busy(ProviderError),
    /// The object is no longer the expected one, and was left alone.
    Refused(IdentityCheck),
}

/// The audit row of one request. It is written when this is dropped.
struct AuditRow<'a> {
    audit: &'a Audit,
    item: &'a PlanItem,
    evidence: &'a str,
    attempt: u32,
    outcome: &'static str,
    detail: String,
}

impl Drop for AuditRow<'_> {
    fn drop(&mut self) {
        let row = try_of(self.item, RELEASE, self.attempt, self.outcome, &self.detail);
        self.audit.note(creel_ledger::Try { evidence: Some(self.evidence.into()), ..row });
    }
}

impl Job<'_> {
    /// Requests the release of the object that the authorization covers.
    ///
    /// `is_fresh` means that the object was just inspected.
    pub(super) async fn send(
        &self,
        provider: Arc<dyn Provider>,
        item: &PlanItem,
        mode: &ReleaseMode,
        (authorization, attempt, is_fresh): (&Authorization, u32, bool),
    ) -> Result<SendResult, ProviderError> {
        let (kind, id) = (item.seen.kind, item.seen.id.as_str());
        if authorization.can_expire() && !is_fresh {
            let Some(seen) = provider.inspect(kind, id).await? else {
                return Ok(SendResult::Accepted(Released::AlreadyGone));
            };
            if let Some(refused) = seen.identity().and_then(|now| authorization.check(&now)) {
                return Ok(SendResult::Refused(refused));
            }
        }
        let mut row = AuditRow {
            audit: self.audit,
            item,
            evidence: &authorization.evidence,
            attempt,
            outcome: "unanswered",
            detail: String::new(),
        };
        #[expect(clippy::disallowed_methods, reason = "this is the place that writes the audit")]
        let result = provider.release(kind, id, mode.clone()).await;
        match result {
            Ok(Released::Kept(check)) => {
                row.outcome = "kept";
                Ok(SendResult::Refused(check))
            }
            Ok(released) => {
                row.outcome = "ok";
                Ok(SendResult::Accepted(released))
            }
            Err(error) => {
                row.outcome = error.class.name();
                row.detail.clone_from(&error.message);
                match error.class {
                    ErrorClass::Gone => Ok(SendResult::Accepted(Released::AlreadyGone)),
                    // Another operation is in progress: watch instead of asking again.
                    ErrorClass::InProgress => Ok(SendResult::Busy(error)),
                    _ => Err(error),
                }
            }
        }
    }
}
