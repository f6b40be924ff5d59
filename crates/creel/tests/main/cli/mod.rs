//! The command line as a user sees it: what it selects, spares, prints and returns.
//!
//! All tests share one engine and run concurrently, so each uses a unique
//! name and never selects without it. A test that selects everything, or
//! breaks the engine, starts a private one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod caps;
pub(crate) mod cloud;
mod daytona_library;
mod dev_daytona;
mod doctor;
mod errors;
mod fixture;
mod killed_sweep;
mod ledger;
mod library;
mod ls;
mod migrating;
mod plan;
mod pre_sweep;
mod recipe_proof;
mod recipe_use;
mod recipes;
mod rm_and_stop;
mod sandboxes;
mod select;
mod spared;
mod sweep;
mod transports;
mod two_providers;
