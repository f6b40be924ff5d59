//! A loopback server that speaks the Daytona API, v1.
//!
//! It stands in for the real service where that cannot be reached or must not
//! be hurt: `creel dev daytona` and the tests use the same one. Sandboxes are
//! real (process trees or containers) or hollow (records only); the toolbox
//! really executes; states take their time; limits and errors have the shapes
//! of the real service; and everything that is known to go wrong there can be
//! ordered.
//!
//! ```text
//!   client ──▶ gate ───────────────▶ api ──▶ registry ◀── lifecycle, timers
//!              host, key, limits,    │
//!              faults, counts        └─▶ toolbox ──▶ backend (process, docker)
//!   test ────▶ admin: faults, seed, requests
//! ```
//!
//! The server answers only on loopback, only under the authority it listens
//! on, and only to the key it made up at its start. It keeps nothing: a crash
//! leaves what its supervisor's ledger says, and the processes of a sandbox
//! end by themselves when the server is gone (see the `backend` module).
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
mod moment;
mod percent;
mod query;
mod registry;
mod route;
mod sandbox;
mod server;
mod settings;
mod shared;
mod state;
mod timers;
mod toolbox;

pub use fault::{At, FaultOrder, Kind, Match};
pub use route::Operation;
pub use server::{Running, Server, StartError};
pub use settings::{
    ApiVersion, Backend, Delays, RateLimits, Scenario, ScenarioError, Seed, Settings,
};
pub use state::State;

/// The version of the API that is spoken.
pub(crate) const VERSION: &str = "0.205.1";
