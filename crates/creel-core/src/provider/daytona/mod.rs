//! Daytona: cloud sandboxes of one organisation.
//!
//! ```text
//!   provider ─▶ read, create, release ─▶ Wire (trait) ─▶ RestV1 ─▶ http ─▶ reqwest
//!      │            every rule about states          routes    │
//!      └─▶ toolbox: exec, sessions, files, git ────────────────┤
//!                                     limiter (per throttler) ─┤
//!                                     refused key (latch) ─────┤
//!                                     classify: every error ───┘
//! ```
//!
//! Three facts shape this module. A create can fail and leave a sandbox
//! behind, so every create carries a name and labels by which `find` finds it.
//! A 404 does not prove that a sandbox is gone: a failed destroy hides the
//! record from every call but one listing, so that listing is asked before an
//! absence is believed. And an answer that does not parse must not hide an id:
//! only the id is required of an answer.
//!
//! A crash in the middle of a create leaves a sandbox under its deterministic
//! name that stops and deletes itself when its lease and a margin have passed;
//! one in the middle of a release leaves a sandbox that Daytona finishes
//! destroying, or that the next release ends.

mod absence;
mod access;
mod bounds;
mod classify;
mod create;
mod destroys;
mod http;
mod limiter;
mod model;
mod observe;
mod passage;
mod provider;
mod read;
mod release;
mod rest;
mod state;
pub mod toolbox;
mod wire;

pub(crate) use create::{knows_no_time_to_live, minutes_of};
pub(crate) use http::tls;
pub(crate) use model::id_in;
pub(crate) use passage::Passage;
pub(crate) use provider::Renewal;

pub use access::{DaytonaEnvironment, DaytonaSettings, InvalidAccess};
pub use classify::Refusal;
pub use model::{KeyRights, Sandbox};
pub use provider::DaytonaProvider;
pub use state::{STATES, SandboxState};
pub use wire::{Answered, BuildInfo, ListQuery, NewSandbox, Page, StopMode, Wire};
