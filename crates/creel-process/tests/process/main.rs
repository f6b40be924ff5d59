//! The process provider against the real kernel.
//!
//! Holders, and supervisors that die, are processes of a helper program (`helper.rs`).
#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

mod directories;
mod disks;
mod fixture;
mod frozen;
mod no_birth_times;
mod replaced;
mod requests;
mod trees;
