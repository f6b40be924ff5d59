//! Deletes that a provider accepted but did not finish.

use creel_model::id::ResourceId;
use creel_model::provider::{Kind, ProviderName};
use creel_sanitise::{Diagnostic, Masked};
use jiff::Timestamp;
use serde::Serialize;

/// A delete that its provider accepted, but whose object still exists.
///
/// It stays on record until the absence of the object is verified, no matter who created the
/// object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnfinishedDelete {
    /// The provider that accepted it.
    pub provider: ProviderName,
    /// The kind of the object.
    pub kind: Kind,
    /// The provider's id of the object.
    pub id: String,
    /// Its name when the delete was sent.
    pub name: Masked,
    /// The resource, if this ledger tracks the object.
    pub resource: Option<ResourceId>,
    /// The provider's reason why it still exists.
    pub reason: Diagnostic,
    /// When the provider will remove it; `None` if the provider names no date.
    pub kept_until: Option<Timestamp>,
    /// When the delete was first seen unfinished.
    pub first_seen_at: Timestamp,
}

impl UnfinishedDelete {
    /// Returns whether the object should be gone by now.
    ///
    /// That is the case when there is no date to wait for, or when it has passed.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.kept_until.is_none_or(|until| until <= now)
    }
}

/// The result of recording an unfinished delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// The delete as recorded. The first date that was named stays.
    pub delete: UnfinishedDelete,
    /// Whether it was not on record before.
    pub is_new: bool,
}
