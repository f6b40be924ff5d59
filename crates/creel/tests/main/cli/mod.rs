//! The command line as a user meets it: what it selects, spares, prints and returns.
//!
//! All tests share one engine and run side by side, so each works under a name
//! of its own and never selects without it. What means everything, or breaks
//! the engine, starts a private one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod bench;
mod caps;
pub(crate) mod cloud;
mod daytona;
mod doctor;
mod errors;
mod killed;
mod ledger;
mod library;
mod ls;
mod managed;
mod migrating;
mod named;
mod plan;
mod pre_sweep;
mod reach;
mod recipe_proof;
mod recipe_use;
mod recipes;
mod sandboxes;
mod select;
mod spare;
mod sweep;
mod together;
