//! Tests of the local Daytona server, by its own promises and with the official SDKs.
//!
//! Holders, and servers that a test kills, are processes of a helper program (`helper.rs`).

mod client;
mod docker;
mod faults;
mod fixture;
mod leftovers;
mod lifecycle;
mod limits;
mod listing;
mod sdk;
mod server;
mod service;
mod timers;
mod toolbox;
