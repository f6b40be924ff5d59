//! The Daytona provider against the local server, faults included.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod create;
mod decoys;
mod fixture;
mod gate;
mod hostile;
mod limits;
mod list;
mod quarantine;
mod release;
mod renew;
mod settings;
mod stub;
mod unfinished_deletes;
