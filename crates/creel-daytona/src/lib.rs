//! Daytona: cloud sandboxes of one organisation.
//!
//! ```text
//!   provider ─▶ read, create, release ─▶ DaytonaApi (routes) ─▶ http ─▶ reqwest
//!      │            every rule about states                    │
//!      └─▶ toolbox: exec, sessions, files, git ────────────────┤
//!                                     limiter (per throttler) ─┤
//!                                     refused key (latch) ─────┤
//!                                     classify: every error ───┘
//! ```
//!
//! Three facts shape this module. First, a create can fail and leave a sandbox behind, so every
//! create carries a name and labels by which `find` finds it. Second, a 404 does not prove that a
//! sandbox is gone: a failed destroy hides the record from every call but one listing, so an
//! absence counts only after that listing. Third, a response that does not parse must not hide an
//! id, so the id is the only required field.
//!
//! A crash in the middle of a create leaves a sandbox under its deterministic name. It stops and
//! deletes itself when its lease and a margin have passed. A crash in the middle of a release
//! leaves a sandbox that Daytona finishes destroying, or that the next release ends.

mod absence;
mod access;
mod api;
mod backend;
mod bounds;
mod classify;
mod create;
mod destroys;
mod dotenv;
mod http;
mod limiter;
mod listing;
mod model;
mod observe;
mod passthrough;
mod provider;
mod read;
mod read_retry;
mod release;
mod rest;
mod sandbox;
mod state;
pub mod toolbox;

use creel_model::provider::ProviderName;

pub use create::{knows_no_time_to_live, minutes_of};
pub use http::tls;
pub use model::id_in;
pub use passthrough::PassthroughClient;
pub use provider::Renewal;

pub use access::{DaytonaEnvironment, DaytonaSettings, InvalidAccess};
pub use api::{BuildInfo, DaytonaResult, ListQuery, NewSandbox, SandboxPage, StopMode};
pub use backend::DaytonaBackend;
pub use classify::DaytonaError;
pub use model::{DaytonaSandbox, KeyRights};
pub use provider::DaytonaProvider;
pub use rest::DaytonaApi;
pub use sandbox::DaytonaSandboxes;
pub use state::{STATES, SandboxState};

/// The name of this provider.
pub const NAME: ProviderName = ProviderName::new("daytona");
