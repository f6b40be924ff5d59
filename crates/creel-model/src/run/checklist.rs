//! The checklist: every step of a bootstrap, with the expected and the actual result.

use creel_sanitise::{Diagnostic, Masked};
use serde::{Deserialize, Serialize};

/// The status of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// It is running.
    Running,
    /// The result was as expected.
    Passed,
    /// The result was not as expected, and that ends the bootstrap.
    Failed,
    /// The result was not as expected, but the step is optional.
    Tolerated,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name, unique in the checklist of an attempt.
    pub step: Masked,
    /// Its status.
    pub status: StepStatus,
    /// The expected result.
    pub expected: Diagnostic,
    /// The actual result.
    pub found: Option<Diagnostic>,
    /// The exit code of the command that decided.
    pub exit_code: Option<i32>,
    /// How long it took.
    pub seconds: Option<f64>,
    /// How often it was tried.
    pub tries: u32,
    /// How long it may go without output, in seconds.
    pub inactivity_limit: Option<f64>,
    /// How long it may take, in seconds.
    pub hard_limit: f64,
    /// The end of its output.
    pub tail: Option<Diagnostic>,
}

impl Step {
    /// Returns whether the bootstrap may continue after it.
    pub fn is_done(&self) -> bool {
        matches!(self.status, StepStatus::Passed | StepStatus::Tolerated)
    }
}
