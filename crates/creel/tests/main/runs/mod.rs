//! Runs, from their records to proofs with real parts.

mod kills;
mod records;
mod scene;
mod stage;
mod workspace;
