//! Recipes: what a harness leaves behind when nobody guarded it, and what proves it finished.
//!
//! ```text
//!   recipe (TOML) ─▶ marks: whose is it? ─▶ a closer look ─▶ proof: has it finished?
//!                    names, labels, projects                 age, state, session, processes
//!                                                                │
//!                      plan ◀─ findings: go, with evidence · stay, with the reason
//! ```
//!
//! A recipe is data. Its rules say by which names and labels of its own a
//! harness's objects are known, and what must be so before one of them counts
//! as finished. Whatever cannot be told spares the object: an unknown age, a
//! label that may be inherited from an image, processes that are hidden from
//! us. [`Recipe::judge`] is pure; [`look_closer`] and [`LocalEvidence::gather`]
//! collect what it needs. Nothing is changed here, so a crash leaves nothing.

mod builtin;
mod clocks;
mod connections;
mod file;
mod gather;
mod judge;
mod look;
mod mark;
mod pattern;
mod processes;
mod program;
mod session;
mod shelf;
mod users;

pub use clocks::{Clocks, Reading};
pub use connections::Connections;
pub use file::{InvalidRecipe, Owners, Recipe, Rule, Session, Vouch};
pub use gather::LocalEvidence;
pub use judge::{Finding, Findings, Proof, Surroundings, Verdict};
pub use look::look_closer;
pub use pattern::Pattern;
pub use processes::{Handles, Processes, Running};
pub use program::{ProgramName, RunAs};
pub use shelf::{Entry, Origin, RecipeError, Shelf};
