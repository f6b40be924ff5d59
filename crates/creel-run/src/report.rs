//! The report of a run: one line of JSON with its outcome.

use creel_ledger::RunRecord;
use creel_model::id::RunId;
use creel_model::run::Capabilities;
use creel_model::run::Certified;
use creel_model::run::Condition;
use creel_model::run::{Cause, CauseClass};
use creel_model::run::{Connection, Phase};
use creel_model::run::{Step, StepStatus};
use creel_sanitise::Masked;
use jiff::Timestamp;
use serde::Serialize;

/// The version of the format.
const VERSION: u32 = 1;

/// The report of a run, for scripts and for `creel show`.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport<'a> {
    /// The version of the format.
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// The name of its workflow.
    pub name: &'a str,
    /// The phase it is in.
    pub phase: Phase,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The decisive cause, if the attempt has one.
    pub cause: Option<CauseReport<'a>>,
    /// All stored causes, oldest first.
    pub causes: Vec<CauseReport<'a>>,
    /// Whether its sandbox can be reached.
    pub connection: Connection,
    /// The known conditions.
    pub conditions: Vec<&'a Condition>,
    /// The steps of its bootstrap.
    pub checklist: Vec<StepReport<'a>>,
    /// The capabilities of the agent.
    pub capabilities: &'a Capabilities,
    /// The time until which its sandbox is kept for inspection.
    pub kept_until: Option<Timestamp>,
    /// The certificate of the release, or `None` before a release.
    pub certificate: Option<&'a Certified>,
    /// How many changes could not be recorded, because the disk is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_incomplete: Option<usize>,
}

/// A cause in the report.
#[derive(Debug, Clone, Serialize)]
pub struct CauseReport<'a> {
    /// The class of the cause.
    pub class: CauseClass,
    /// What happened, in one sentence.
    pub message: &'a str,
    /// What to do, in one sentence.
    pub action: &'static str,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// The step of the bootstrap in which it happened.
    pub step: Option<&'a str>,
    /// The attempt in which it happened.
    pub attempt: u32,
}

/// A step of the checklist in the report.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport<'a> {
    /// Its name.
    pub step: &'a str,
    /// The status of the step.
    pub status: StepStatus,
    /// The expected result.
    pub expected: &'a str,
    /// The actual result.
    pub found: Option<&'a str>,
    /// The exit code of the command that decided.
    pub exit_code: Option<i32>,
    /// How long it took.
    pub seconds: Option<f64>,
    /// How often it was tried.
    pub tries: u32,
    /// The end of its output.
    pub tail: Option<&'a str>,
}

impl<'a> RunReport<'a> {
    /// Builds the report of a run.
    pub fn of(record: &'a RunRecord) -> Self {
        let state = &record.state;
        Self {
            version: VERSION,
            run: record.id,
            name: record.name.as_str(),
            phase: state.phase,
            attempt: state.attempt,
            cause: state.cause().map(CauseReport::of),
            causes: state.causes.chain().iter().map(CauseReport::of).collect(),
            connection: state.connection,
            conditions: state.conditions.values().collect(),
            checklist: state.checklist.iter().map(StepReport::of).collect(),
            capabilities: &state.capabilities,
            kept_until: state.kept_until_ms.and_then(|at| Timestamp::from_millisecond(at).ok()),
            certificate: state.certificate.as_ref(),
            audit_incomplete: None,
        }
    }
}

impl<'a> CauseReport<'a> {
    fn of(cause: &'a Cause) -> Self {
        Self {
            class: cause.class,
            message: cause.message.as_str(),
            action: cause.action(),
            retryable: cause.retryable,
            step: cause.step.as_ref().map(Masked::as_str),
            attempt: cause.attempt,
        }
    }
}

impl<'a> StepReport<'a> {
    fn of(step: &'a Step) -> Self {
        Self {
            step: step.step.as_str(),
            status: step.status,
            expected: step.expected.as_str(),
            found: step.found.as_ref().map(|found| found.as_str()),
            exit_code: step.exit_code,
            seconds: step.seconds,
            tries: step.tries,
            tail: step.tail.as_ref().map(|tail| tail.as_str()),
        }
    }
}
