//! creel's proofs: the real binary against real parts.
//!
//! Run by `cargo xtask test`, which provides the engine.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

mod cli;
mod crash;
mod faults;
mod late;
mod recovery;
mod scripted;
mod support;
mod sweeps;
mod watchdog;
