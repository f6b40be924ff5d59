//! Deletes that a provider accepted and that did not finish.

use jiff::Timestamp;
use serde::Serialize;

use crate::id::ResourceId;
use crate::provider::{Kind, ProviderName};
use crate::sanitise::{Diagnostic, Masked};

/// A delete that its provider accepted, and whose object is still there.
///
/// It is remembered whoever made the object, until the absence of the object is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnfinishedDelete {
    /// Which provider accepted it.
    pub provider: ProviderName,
    /// What the object is.
    pub kind: Kind,
    /// The provider's id of the object.
    pub id: String,
    /// Its name when the delete was sent.
    pub name: Masked,
    /// The resource, where this ledger tracks the object.
    pub resource: Option<ResourceId>,
    /// Why it is still there, as the provider says.
    pub reason: Diagnostic,
    /// Until when the provider keeps it; `None` where the provider names no end.
    pub kept_until: Option<Timestamp>,
    /// When the delete was first seen not to finish.
    pub first_seen_at: Timestamp,
}

impl UnfinishedDelete {
    /// Returns whether the object should be gone by now: there is no date to wait for, or it has
    /// passed.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.kept_until.is_none_or(|until| until <= now)
    }
}

/// What became of a note about an unfinished delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// The delete as it is on record: the first date that was named stays.
    pub delete: UnfinishedDelete,
    /// Whether it was not on record before.
    pub is_new: bool,
}
