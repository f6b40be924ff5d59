//! The authorization for a release: the proof of ownership, or the rule that selected the object.
//!
//! A tracked object is released only while it is proven to be the recorded one. An untracked object
//! is released by the rule that selected it, and only while it is the object that was selected.

use creel_ledger::Record;
use creel_model::provider::{Identity, IdentityCheck, Observed};

use crate::plan::PlanItem;

/// The authorization for the release of one object.
#[derive(Debug, Clone)]
pub(super) struct Authorization {
    /// The identity that the object is compared with right before each attempt.
    pub(super) expected: Option<Identity>,
    /// The evidence that allows it, for the audit.
    pub(super) evidence: String,
    /// Whether proof is required, because the object is on record as ours.
    needs_proof: bool,
}

/// Whether an object may be released.
#[derive(Debug)]
pub(super) enum Permission {
    /// It may be released.
    Granted(Authorization),
    /// Another object has its name.
    Replaced(String),
    /// Nothing proves that it is the recorded one.
    Unproven(String),
}

/// Judges an object that was inspected right before its release.
pub(super) fn judge(item: &PlanItem, record: Option<&Record>, seen: &Observed) -> Permission {
    let Some(record) = record else { return judge_selected(item, seen) };
    match record.check(seen) {
        IdentityCheck::Same { evidence } => {
            Permission::Granted(Authorization::of_ours(item, record, seen, &evidence))
        }
        IdentityCheck::Replaced { why } => Permission::Replaced(why),
        IdentityCheck::Unproven { why } => Permission::Unproven(why),
    }
}

/// Judges an untracked object: it must still be the one that was selected.
fn judge_selected(item: &PlanItem, seen: &Observed) -> Permission {
    let authorization = Authorization::by_rule(item);
    let Some(now) = seen.identity() else { return Permission::Granted(authorization) };
    match authorization.check(&now) {
        Some(IdentityCheck::Replaced { why } | IdentityCheck::Unproven { why }) => {
            Permission::Replaced(why)
        }
        Some(IdentityCheck::Same { .. }) | None => Permission::Granted(authorization),
    }
}

impl Authorization {
    /// Allows the release of an untracked object that a rule selected.
    pub(super) fn by_rule(item: &PlanItem) -> Self {
        let evidence = match &item.evidence {
            Some(proof) => format!("rule: {}; {proof}", item.rule),
            None => format!("rule: {}", item.rule),
        };
        Self { expected: item.seen.identity(), evidence, needs_proof: false }
    }

    /// Allows the release of an object that is proven to be the recorded one.
    pub(super) fn of_ours(
        item: &PlanItem,
        record: &Record,
        seen: &Observed,
        evidence: &str,
    ) -> Self {
        Self {
            expected: record.identity.clone().or_else(|| seen.identity()),
            evidence: format!("{}; {evidence}", item.rule),
            needs_proof: true,
        }
    }

    /// Returns whether the object must be inspected again right before an attempt.
    pub(super) fn can_expire(&self) -> bool {
        self.expected.as_ref().is_some_and(Identity::can_be_replaced)
    }

    /// Compares an observed object with the authorization. Returns the check that forbids the release, if
    /// any.
    pub(super) fn check(&self, observed: &Identity) -> Option<IdentityCheck> {
        let expected = self.expected.as_ref()?;
        match Identity::compare(expected, observed) {
            IdentityCheck::Same { .. } => None,
            // An unlabelled volume is identified by its name, which the rule selected.
            IdentityCheck::Unproven { .. }
                if !self.needs_proof && matches!(expected, Identity::Volume { .. }) =>
            {
                None
            }
            IdentityCheck::Unproven { .. }
                if !self.needs_proof && is_selected_image(expected, observed) =>
            {
                None
            }
            refused => Some(refused),
        }
    }
}

/// Returns whether an image is the one that was selected.
///
/// A list does not show when an image was tagged, and after a load the engine does not know it
/// either. The id and the names must suffice then.
fn is_selected_image(selected: &Identity, observed: &Identity) -> bool {
    match (selected, observed) {
        (
            Identity::Image { id, tags, tagged_at },
            Identity::Image { id: seen, tags: seen_tags, tagged_at: seen_at },
        ) => {
            id == seen && seen_tags.is_subset(tags) && (tagged_at.is_none() || tagged_at == seen_at)
        }
        _ => false,
    }
}
