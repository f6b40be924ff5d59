//! Runs, from their records to end-to-end tests with real parts.

mod alone;
mod commands;
mod image;
mod kept_sandboxes;
mod kills;
mod misbehaving;
mod records;
mod recovery;
mod run_fixture;
mod secrets;
mod spools;
mod streams;
mod workflow_fixture;
mod workspace;
