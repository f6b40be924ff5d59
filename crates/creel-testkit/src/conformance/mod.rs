//! The suite that every provider passes.
//!
//! A provider's tests implement [`Subject`]: how to start the system, how to lose an answer, how to
//! act on objects behind the provider's back. The suite brings the cases. Each case is a test of its
//! own, named by provider, kind and case, as in `docker::volume::a_second_release_finds_it_gone`.
//!
//! ```text
//!   cases ──▶ Provider, SandboxProvider ──▶ the system
//!     └─────▶ Subject: plant, remove, lose answers, fail, cut streams ──▲
//! ```
//!
//! | module | what it proves |
//! |---|---|
//! | `creation` | one create makes one object, which inspect, list and find agree on |
//! | `lost_answers` | a create whose answer was lost is found again, and nothing else is |
//! | `listing` | a list under change neither fails nor invents |
//! | `releasing` | a release is verified, may happen twice, and spares what it should not take |
//! | `refusals` | wrong kinds, malformed ids and impossible limits are errors, never "absent" |
//! | `failures` | a failing system is an error with its class, never an empty answer |
//! | `self_description` | what the provider says about itself holds |
//! | `commands` | exit codes, output, input, limits, cancelled commands and cut streams |
//! | `files` | files make the round trip unchanged |
//! | `lifecycle` | a sandbox is made of recorded parts, stops, starts, and is gone when released |
//!
//! `docs/providers.md` describes how to write a provider with this suite.
#![expect(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

mod bridge;
mod commands;
mod context;
mod creation;
mod failures;
mod files;
mod lifecycle;
mod listing;
mod lost_answers;
mod refusals;
mod releasing;
mod sandbox;
mod self_description;
mod subject;
mod suite;

pub use bridge::bridge_program;
pub use subject::{Abilities, Failure, LimitSupport, Purpose, SandboxAbilities, Subject};
pub use suite::{run, trials};
