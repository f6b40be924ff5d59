//! Runs, from their records to proofs with real parts.

mod records;
mod scene;
mod workspace;
