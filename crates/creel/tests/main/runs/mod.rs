//! Runs, from their records to proofs with real parts.

mod keep;
mod kills;
mod many;
mod orders;
mod records;
mod stage;
mod streams;
