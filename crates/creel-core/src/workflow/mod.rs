//! Workflows: what a run is told to do, in a file that is right as a whole or refused.
//!
//! ```text
//!   text ─▶ TOML ─▶ shape ─▶ file ─▶ settle ─▶ Workflow ─▶ settle ─▶ Resolved
//!           syntax  keys,    as it   what can    │         with env, inputs
//!                   types    stands  be told     │
//!                                                └─▶ inputs(): what it asks for
//! ```
//!
//! Each stage tells everything that is wrong in it at once, with file, line,
//! column and a suggestion. The shape is the JSON schema made of the types in
//! `file.rs` ([`schema`]), so editors and creel accept the same. Values are
//! settled by one function, which runs twice: without what the file refers to,
//! and with it.
//!
//! Secrets come only by reference. No message and no `Debug` repeats what came
//! from outside of the file. Core reads no environment: [`Lookup`] does.
//! Nothing is kept here, so a crash leaves nothing behind.

mod error;
mod file;
mod place;
mod reference;
mod resolved;
mod schema;
mod settle;
mod shape;
mod source;
mod steps;
mod suggest;
#[cfg(test)]
mod tests;
mod veil;
mod workflow;

pub use error::{Problem, WorkflowError};
pub use place::Place;
pub use resolved::{
    Credential, Model, ModelChoice, ModelProvider, OnFailure, Pause, PromptBy, Repository,
    Resolved, RunLimits, Runtime, RuntimeKind, SandboxSettings, Script, Task, Workspace,
};
pub use schema::schema;
pub use source::Source;
pub use steps::{PlannedStep, StepKind};
pub use veil::Veil;
pub use workflow::{Lookup, Workflow};
