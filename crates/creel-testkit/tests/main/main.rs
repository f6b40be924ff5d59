//! Tests of the testkit with real parts.
//!
//! Run by `cargo xtask test`, which provides the engine.

mod decoys;
mod engine;
mod reach;
mod torture;
mod wire;
