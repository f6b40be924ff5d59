//! Workflows: files that say what a run does. A file is valid as a whole, or rejected.
//!
//! ```text
//!   text ─▶ TOML ─▶ shape ─▶ file ─▶ resolve ─▶ Workflow ─▶ resolve ─▶ Resolved
//!           syntax  keys,    as it   what can     │         with env, inputs
//!                   types    is      be known     │
//!                                                 └─▶ inputs(): the inputs it requires
//! ```
//!
//! Each stage reports all its errors at once, with file, line, column and a
//! suggestion. The shape is the JSON schema of the types in `file.rs`
//! ([`schema`]), so editors and creel accept the same files. One function
//! interprets the values. It runs twice: without the values of the references,
//! and with them.
//!
//! Secrets come only by reference. No message and no `Debug` output repeats
//! values from outside of the file. This crate does not read the environment: the
//! caller provides it with [`Lookup`]. Nothing is stored here, so a crash leaves nothing behind.

mod error;
mod file;
mod place;
mod reference;
mod resolve;
mod resolved;
mod schema;
mod settings_masker;
mod shape;
mod source;
mod steps;
mod suggest;
#[cfg(test)]
mod tests;
mod workflow;

pub use error::{Problem, WorkflowError};
pub use place::SourcePosition;
pub use resolved::{
    Credential, Model, ModelChoice, ModelProvider, OnFailure, Pause, PromptBy, Repository,
    Resolved, RunLimits, Runtime, RuntimeKind, SandboxSettings, Script, Task, Workspace,
};
pub use schema::schema;
pub use settings_masker::SettingsMasker;
pub use source::Source;
pub use steps::{PlannedStep, StepKind};
pub use workflow::{Lookup, Workflow};
