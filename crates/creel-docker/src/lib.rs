//! Docker: containers, networks, volumes and images of one engine, or of Podman behind Docker's
//! API.
//!
//! ```text
//!   environment ─▶ endpoint ─▶ transport ─┬─▶ client library ─▶ create, release
//!                              unix, tcp, └─▶ slim rows ──────▶ list, inspect, find
//!                              tls, ssh            every error ─▶ classify
//! ```
//!
//! A crash in the middle of a create leaves an object under its deterministic name with its label,
//! which `find` finds. A crash in the middle of a release leaves an engine that finishes the
//! release by itself, or an object that the next release removes.

mod absence_checks;
mod address;
mod backend;
mod bounds;
mod classify;
mod connection;
mod create;
mod encode;
mod endpoint;
mod engine;
mod files;
mod guarded;
mod in_use;
mod inside;
mod kill;
mod model;
mod observe;
mod place;
mod provider;
mod pull;
mod read;
mod reference;
mod release;
mod rows;
mod sandbox;
mod states;
mod steps;
mod tagged;
mod transport;
mod untag;

#[cfg(test)]
mod tests;

use creel_model::provider::ProviderName;

pub use address::{Address, InvalidAddress, SshTarget, TlsFiles};
pub use backend::DockerBackend;
pub use classify::advice;
pub use endpoint::{DockerEnvironment, Endpoint, EndpointError, EndpointOrigin};
pub use engine::{Component, EngineVersion};
pub use guarded::ImageNames;
pub use inside::{Attached, ExecOutput};
pub use provider::DockerProvider;
pub use read::step_name;
pub use reference::{familiar, joined};
pub use sandbox::DockerSandboxes;
pub use states::STATES;
pub use transport::RawStream;

/// The decisions about images as pure functions, for tests that model an engine.
pub mod decisions {
    pub use crate::steps::{Family, follows};
    pub use crate::untag::{Ours, Removal, foreign_name, removal};
}

/// The name of this provider.
pub const NAME: ProviderName = ProviderName::new("docker");
