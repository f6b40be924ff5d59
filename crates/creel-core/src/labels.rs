//! The labels by which an object is found again without the ledger.
//!
//! Labels are inherited (a container takes those of its image), so a label
//! alone never proves ownership: the ledger must know the resource, and the
//! recorded id must match where one was recorded.

use std::collections::BTreeMap;

use crate::id::{LedgerId, ResourceId, RunId};
use crate::owner::Owner;

/// Labels as every provider shows them.
pub type Labels = BTreeMap<String, String>;

/// The resource id: unique per create, the nonce of that create.
pub const RESOURCE: &str = "dev.creel.resource";
/// The run the resource was taken for.
pub const RUN: &str = "dev.creel.run";
/// The owner, as [`Owner`] prints itself.
pub const OWNER: &str = "dev.creel.owner";
/// The ledger that recorded the intent.
pub const LEDGER: &str = "dev.creel.ledger";
/// Spares an object from every release; any value but `false` protects.
pub const PROTECT: &str = "dev.creel.protect";
/// The Compose project an object belongs to.
pub const COMPOSE_PROJECT: &str = "com.docker.compose.project";

/// Returns the labels that every create carries.
pub fn of_resource(
    resource: &ResourceId,
    ledger: &LedgerId,
    owner: &Owner,
    run: Option<&RunId>,
) -> Labels {
    let mut labels = Labels::from([
        (RESOURCE.to_owned(), resource.to_string()),
        (LEDGER.to_owned(), ledger.to_string()),
        (OWNER.to_owned(), owner.to_string()),
    ]);
    if let Some(run) = run {
        labels.insert(RUN.to_owned(), run.to_string());
    }
    labels
}

/// Returns whether the labels ask for protection.
pub fn protects(labels: &Labels) -> bool {
    labels.get(PROTECT).is_some_and(|value| value != "false")
}

/// Returns the resource id the labels claim, if it is one.
pub fn claimed_resource(labels: &Labels) -> Option<ResourceId> {
    labels.get(RESOURCE)?.parse().ok()
}

/// Returns the owner the labels claim, if it is one.
pub fn claimed_owner(labels: &Labels) -> Option<Owner> {
    labels.get(OWNER)?.parse().ok()
}

/// Returns the ledger the labels claim, if it is one.
pub fn claimed_ledger(labels: &Labels) -> Option<LedgerId> {
    labels.get(LEDGER)?.parse().ok()
}
