//! creel-core: whatever it starts, it ends, and it can prove it.
//!
//! Every path through this crate follows one sequence of steps:
//!
//! ```text
//!   record the intent ─▶ create ─▶ record the id ─▶ … ─▶ record the release
//!        (ledger)       (provider)    (ledger)              (ledger)
//!                                                              │
//!          close the record ◀─ verify its absence ◀─ release ◀─┘
//!              (ledger)            (provider)       (provider)
//! ```
//!
//! A process may die between any two of these steps. It leaves a ledger record that says what may
//! exist, and under which name and labels. [`reconcile`] reads the record and finishes the work.
//!
//! # The map
//!
//! | module | contents |
//! |---|---|
//! | [`select`] | which resources a command selects: selectors, presets, protection |
//! | [`recipe`] | what a harness leaves behind, and what proves it finished |
//! | [`plan`] | what would be released and why, bound to the objects that were observed |
//! | [`pipeline`] | the one sequence of every release: select, plan, check, release, verify, report |
//! | [`reap`] | releases a plan with retries, verifies, certifies |
//! | [`reconcile`] | makes the ledger and the providers agree again after a crash |
//! | [`scope`] | creates or adopts, and releases on every path |
//! | [`teardown`] | the end of a supervisor: releases all it holds, and says what is left |
//! | [`cleanup`] | the cleanup commands as a library |
//! | [`watchdog`] | releases what a killed supervisor held |
//! | [`config`] | typed settings; `config/defaults.toml` documents them |
//!
//! The ledger is `creel-ledger`. The `Provider` trait, ids and owners are `creel-model`. Each provider
//! is a crate of its own. Runs and guards are built on this crate: `creel-run`, `creel-guard`.
//!
//! # Vocabulary
//!
//! *resource*: one thing that must be released. *provider*: the system it lives in. *owner*: the
//! process that is responsible for it. *lease*: how long it may live without a sign of its owner.
//! *intent*: the record before the create. *release*: request its deletion. *gone*: its absence was
//! verified. *quarantine*: it cannot be removed, and the reason is on record. *orphan*: its owner
//! is dead. *plan*, *sweep*, *reconcile*, *certificate*: see the modules.

pub mod cleanup;
pub mod config;
pub mod pipeline;
pub mod plan;
pub mod reap;
pub mod rebuild;
pub mod recipe;
pub mod reconcile;
pub mod scope;
pub mod select;
pub mod teardown;
pub mod watchdog;

/// Compiles the snippets of the migration page for users of cleanup scripts.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migrating.md")]
struct Migrating;
