//! creel-core: whatever it starts, it ends, and it can prove it.
//!
//! The promise rests on one order of steps, kept by every path through this
//! crate:
//!
//! ```text
//!   record the intent ─▶ create ─▶ record the id ─▶ … ─▶ record the release
//!        (ledger)       (provider)    (ledger)              (ledger)
//!                                                              │
//!          close the record ◀─ verify its absence ◀─ release ◀─┘
//!              (ledger)            (provider)       (provider)
//! ```
//!
//! A process may die between any two of these steps. What it leaves behind is
//! a ledger record that says what may exist and under which name and labels;
//! [`reconcile`] reads it and finishes the work.
//!
//! # The map
//!
//! | module | what lives there |
//! |---|---|
//! | [`ledger`] | the durable record of every resource, and its state machine |
//! | [`provider`] | the worlds resources live in: Docker, Daytona, processes |
//! | [`owner`] | who holds a resource, and whether it is still alive |
//! | [`select`] | which resources a command means: selectors, presets, protection |
//! | [`recipe`] | what a harness leaves behind, and what proves it finished |
//! | [`plan`] | what would be released and why, bound to what was seen |
//! | [`reap`] | releases a plan with retries, verifies, certifies |
//! | [`reconcile`] | makes ledger and world agree again after a crash |
//! | [`workflow`] | what a run is told to do: a file, right as a whole or refused |
//! | [`run`] | a workflow's way from nothing to a known outcome |
//! | [`sandbox`] | the way into a sandbox, whoever provides it |
//! | [`sanitise`] | what of the outside's words may be kept or shown |
//! | [`scope`] | creates or adopts, and releases on every path |
//! | [`cleanup`] | the library face of the cleanup commands |
//! | [`guard`] | stands between a command and the providers, and owns what it creates |
//! | [`watchdog`] | releases what a killed supervisor held |
//! | [`config`] | typed settings; `config/defaults.toml` documents them |
//! | [`failure`] | error codes, their pages, and the next command to type |
//!
//! # Vocabulary
//!
//! *resource*: one thing that must be given back. *provider*: the world it
//! lives in. *owner*: the process that answers for it. *lease*: how long it
//! may live without a sign of its owner. *intent*: the record before the
//! create. *release*: ask for its end. *gone*: its absence was verified.
//! *quarantine*: it will not go, and why is on record. *orphan*: its owner is
//! dead. *plan*, *sweep*, *reconcile*, *certificate*: see the modules.

pub mod cleanup;
pub mod clock;
pub mod config;
pub mod crashpoint;
pub mod duration;
pub mod failure;
pub mod guard;
pub mod id;
pub mod labels;
pub mod ledger;
pub mod names;
pub mod os;
pub mod owner;
pub mod plan;
pub mod provider;
pub mod reap;
pub mod rebuild;
pub mod recipe;
pub mod reconcile;
pub mod retry;
pub mod run;
pub mod sandbox;
pub mod sanitise;
pub mod scope;
pub mod select;
pub mod size;
pub mod task;
pub mod watchdog;
pub mod workflow;

/// The snippets of the page for people with cleanup scripts compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migrating.md")]
struct Migrating;
