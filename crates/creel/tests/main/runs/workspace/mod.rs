//! Tests that nothing starts on an incomplete workspace, with real git.

mod app;
mod faults;
mod login;
mod many;
mod other_providers;
mod repositories;
mod secrets;
mod ssh;
mod steps;
