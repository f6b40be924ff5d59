//! Proofs that nothing starts on an incomplete workspace, with real git.

mod app;
mod elsewhere;
mod faults;
mod login;
mod many;
mod repositories;
mod secrets;
mod ssh;
mod steps;
