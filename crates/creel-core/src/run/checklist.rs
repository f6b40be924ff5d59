//! The checklist: every step of a bootstrap, with what was expected and what was found.

use serde::{Deserialize, Serialize};

use crate::sanitise::{Diagnostic, Masked};

/// How a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// It is being worked on.
    Running,
    /// It was found as expected.
    Passed,
    /// It was not, and that ends the bootstrap.
    Failed,
    /// It was not, but it is optional.
    Tolerated,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name; unique in the checklist of an attempt.
    pub step: Masked,
    /// How it stands.
    pub status: StepStatus,
    /// What should be found.
    pub expected: Diagnostic,
    /// What was found.
    pub found: Option<Diagnostic>,
    /// The exit code of the command that decided.
    pub exit_code: Option<i32>,
    /// How long it took.
    pub seconds: Option<f64>,
    /// How often it was tried.
    pub tries: u32,
    /// How long it may say nothing, in seconds.
    pub inactivity_limit: Option<f64>,
    /// How long it may take, in seconds.
    pub hard_limit: f64,
    /// The end of what it wrote.
    pub tail: Option<Diagnostic>,
}

impl Step {
    /// Returns whether the bootstrap may go on after it.
    pub fn is_done(&self) -> bool {
        matches!(self.status, StepStatus::Passed | StepStatus::Tolerated)
    }
}
