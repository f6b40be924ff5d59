//! Runs, from their records to proofs with real parts.

mod image;
mod keep;
mod kills;
mod limited;
mod many;
mod orders;
mod records;
mod recovery;
mod scene;
mod secrets;
mod stage;
mod streams;
mod workspace;
