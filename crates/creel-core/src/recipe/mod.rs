//! Recipes describe what a harness leaves behind without a guard, and what proves it finished.
//!
//! ```text
//!   recipe (TOML) ─▶ marks: whose is it? ─▶ examination ─▶ proof: has it finished?
//!                    names, labels, projects                 age, state, session, processes
//!                                                                │
//!                      plan ◀─ findings: go, with evidence · stay, with the reason
//! ```
//!
//! A recipe is data. Its rules name the labels and names that identify a harness's objects, and
//! what must hold before one of them counts as finished. Anything unknown spares the object: an
//! unknown age, a label that may be inherited from an image, processes that are not visible.
//!
//! [`Recipe::judge`] is pure; [`examine_marked`] and [`LocalEvidence::gather`] collect what it needs.
//! This module changes nothing, so a crash leaves nothing behind.

mod builtin;
mod clocks;
mod connections;
mod examine;
mod file;
mod gather;
mod judge;
mod mark;
mod pattern;
mod processes;
mod program;
mod session;
mod store;
mod users;

pub use clocks::{Clocks, Reading};
pub use connections::Connections;
pub use examine::examine_marked;
pub use file::{InvalidRecipe, Owners, Recipe, RecipeRule, RecipeSession, Vouch};
pub use gather::LocalEvidence;
pub use judge::{Finding, Findings, Proof, RecipeContext, RecipeVerdict};
pub use pattern::Pattern;
pub use processes::{Handles, Processes, RunningProcess};
pub use program::{ProgramName, RunAs};
pub use store::{RecipeEntry, RecipeError, RecipeOrigin, RecipeStore};

/// Returns the states that providers report, for tests.
#[cfg(test)]
pub(crate) fn provider_states() -> Vec<&'static str> {
    let sandboxes = creel_daytona::STATES.iter().map(|(name, _)| *name);
    creel_docker::STATES.iter().copied().chain(sandboxes).collect()
}
