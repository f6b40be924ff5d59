//! The testkit against the real parts it is made of.
//!
//! Run by `cargo xtask test`, which provides the engine.

mod decoys;
mod engine;
mod reach;
mod torture;
mod wire;
