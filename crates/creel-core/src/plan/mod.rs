//! Plans: what would be released, by which rule, and what was spared and why.
//!
//! A plan is bound to the state it was made from: the provider's identity and each object's
//! generation. Applying it later releases exactly those objects, and spares as *drifted* what has
//! changed meanwhile.

mod build;
mod caps;
mod drift;
mod file;

use creel_model::id::ResourceId;
use creel_model::provider::{Observed, ProviderName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::recipe::Proof;

pub(crate) use build::{PlanInput, build, examine};
pub use caps::{CapExceeded, Caps};
pub(crate) use drift::drift;
pub use file::{PlanFileError, VERSION};

/// The identity of a provider at the time the plan was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderIdentity {
    /// The name of the provider.
    pub provider: ProviderName,
    /// The provider's own lasting identity.
    pub identity: String,
    /// The address of the provider.
    pub address: String,
}

/// What must still hold when the object is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    /// That it still matches the selectors: for a plan that is applied at once.
    Selected,
    /// The result of an examination: the full generation, and the users of the object.
    Examined,
    /// Only that it is the same object: for our own orphans.
    Identity,
}

/// One object to release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanItem {
    /// The object as it was listed or examined.
    #[serde(flatten)]
    pub seen: Observed,
    /// The rule that selected it.
    pub rule: String,
    /// The resource, if this ledger tracks it.
    pub resource: Option<ResourceId>,
    /// What must still hold at the release.
    pub binding: Binding,
    /// What proves that it has finished, if a recipe required proof.
    #[serde(flatten)]
    pub evidence: Option<Proof>,
}

/// One object that was selected but spared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparedItem {
    /// The object as it was listed.
    #[serde(flatten)]
    pub seen: Observed,
    /// The rule that selected it.
    pub rule: String,
    /// Why it is spared.
    pub reason: String,
}

/// What would be released, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of this format.
    pub version: u32,
    /// When it was made.
    pub made_at: Timestamp,
    /// The providers it was made for.
    #[serde(rename = "worlds")]
    pub identities: Vec<ProviderIdentity>,
    /// The number of listed objects.
    pub listed: usize,
    /// What would be released.
    pub items: Vec<PlanItem>,
    /// What was selected but spared.
    pub spared: Vec<SparedItem>,
}

impl Plan {
    /// Makes a plan for our own orphans, without providers: their ids are on record.
    pub(crate) fn of_ours(items: Vec<PlanItem>) -> Self {
        Self {
            version: VERSION,
            made_at: Timestamp::now(),
            identities: Vec::new(),
            listed: items.len(),
            items,
            spared: Vec::new(),
        }
    }
}
