//! Plans: what would be released, by which rule, and what was spared and why.
//!
//! A plan is bound to what was seen when it was made: the world's identity and
//! each object's generation. Whoever applies it later releases exactly those
//! objects, and spares as *drifted* what has changed meanwhile.

mod build;
mod caps;
mod drift;
mod file;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::ResourceId;
use crate::provider::{Observed, ProviderName};
use crate::recipe::Proof;

pub use build::{PlanInput, build, examine};
pub use caps::{CapExceeded, Caps};
pub use drift::drift;
pub use file::{PlanFileError, VERSION};

/// A world as it was when the plan was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct World {
    /// Which provider.
    pub provider: ProviderName,
    /// Its own lasting identity.
    pub identity: String,
    /// The address it had.
    pub address: String,
}

/// What must still be so when the object is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    /// That it still fits the selectors: for a plan that is carried out at once.
    Selected,
    /// What an examination shows: the full generation, and who uses it.
    Examined,
    /// Only that it is the same object: for our own orphans.
    Identity,
}

/// One object to release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanItem {
    /// The object as it was seen.
    #[serde(flatten)]
    pub seen: Observed,
    /// The rule that selected it.
    pub rule: String,
    /// The resource, where this ledger tracks it.
    pub resource: Option<ResourceId>,
    /// What must still be so.
    pub binding: Binding,
    /// What proves that it has finished, where a recipe asked for proof.
    #[serde(flatten)]
    pub evidence: Option<Proof>,
}

/// One object that was selected but left alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparedItem {
    /// The object as it was seen.
    #[serde(flatten)]
    pub seen: Observed,
    /// The rule that selected it.
    pub rule: String,
    /// Why it is left alone.
    pub reason: String,
}

/// What would be released, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of this shape.
    pub version: u32,
    /// When it was made.
    pub made_at: Timestamp,
    /// The worlds it was made for.
    pub worlds: Vec<World>,
    /// How many objects were looked at.
    pub listed: usize,
    /// What would be released.
    pub items: Vec<PlanItem>,
    /// What was selected but left alone.
    pub spared: Vec<SparedItem>,
}

impl Plan {
    /// Makes a plan of our own orphans, which needs no worlds: their ids are on record.
    pub(crate) fn of_ours(items: Vec<PlanItem>) -> Self {
        Self {
            version: VERSION,
            made_at: Timestamp::now(),
            worlds: Vec::new(),
            listed: items.len(),
            items,
            spared: Vec::new(),
        }
    }
}
