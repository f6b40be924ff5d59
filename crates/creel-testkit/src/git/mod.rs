//! A real git server on loopback, with faults on demand.
//!
//! ```text
//!   git clone ──▶ GitServer (login, faults) ──▶ git http-backend ──▶ bare repositories
//! ```
//!
//! The transferred data is git's own. Only the faults of a server or a network are simulated here.
//! Every request is recorded with its credentials.

mod backend;
mod repository;
mod server;

pub use repository::Origin;
pub use server::{GitFault, GitRequest, GitServer};
