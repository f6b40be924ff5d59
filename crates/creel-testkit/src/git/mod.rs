//! A real git server on loopback, with faults on demand.
//!
//! ```text
//!   git clone ──▶ GitServer (login, faults) ──▶ git http-backend ──▶ bare repositories
//! ```
//!
//! What travels is git's own: only what a server or a network may do wrong is
//! acted out here. Every request is kept, with the login it came with.

mod backend;
mod repository;
mod server;

pub use repository::Origin;
pub use server::{Asked, Fault, GitServer};
