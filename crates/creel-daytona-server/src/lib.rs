//! A loopback server that implements the Daytona API, v1.
//!
//! It replaces the real service where that cannot be reached or must not be harmed. `creel dev
//! daytona` and the tests use the same server. Sandboxes are real (process trees or containers) or
//! hollow (records only). The toolbox really executes commands. State changes take time. Limits and
//! errors have the shapes of the real service, and every failure known from it can be injected.
//!
//! ```text
//!   client ──▶ gate ───────────────▶ api ──▶ registry ◀── lifecycle, timers
//!              host, key, limits,    │
//!              faults, counts        └─▶ toolbox ──▶ session ──▶ backend (process, docker)
//!   test ────▶ admin: faults, seed, requests
//! ```
//!
//! The server answers only on loopback, only under the authority it listens on, and only to the key
//! it generates at its start. It stores nothing: after a crash, its supervisor's ledger lists what
//! is left, and the processes of a sandbox end by themselves when the server is gone (see the
//! `backend` module).
//!
//! # Example
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use creel_daytona_server::{Server, Settings};
//!
//! let running = Server::start(Settings::hollow()).await.unwrap();
//! assert!(running.url().starts_with("http://127.0.0.1:"));
//! running.stop().await;
//! # });
//! ```

mod admin;
mod api;
mod backend;
mod error;
mod fault;
mod gate;
mod lifecycle;
mod limit;
mod lock;
mod moment;
mod percent;
mod query;
mod registry;
mod route;
mod sandbox;
mod server;
mod session;
mod settings;
mod shared;
mod state;
mod timers;
mod toolbox;

pub use fault::{At, FaultKind, FaultSpec, Match};
pub use route::Operation;
pub use server::{Running, Server, StartError};
pub use settings::{
    ApiVersion, Delays, RateLimits, SandboxHost, Scenario, ScenarioError, Seed, Settings,
};
pub use state::State;

/// The implemented version of the API.
pub(crate) const VERSION: &str = "0.205.1";
