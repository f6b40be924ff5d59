//! The report of a run: the one line of JSON in which its outcome is told.

use jiff::Timestamp;
use serde::Serialize;

use crate::id::RunId;
use crate::ledger::RunRecord;
use crate::sanitise::Masked;

use super::capability::Capabilities;
use super::cause::{Cause, CauseClass};
use super::checklist::{Step, StepStatus};
use super::condition::Condition;
use super::phase::{Connection, Phase};
use super::state::Certified;

/// The version of the shape.
const VERSION: u32 = 1;

/// What is told of a run, to scripts and by `creel show`.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport<'a> {
    /// The version of this shape.
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// What its workflow calls itself.
    pub name: &'a str,
    /// Where it is.
    pub phase: Phase,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The cause that counts; none where all is well.
    pub cause: Option<CauseReport<'a>>,
    /// All causes that are kept, oldest first.
    pub causes: Vec<CauseReport<'a>>,
    /// Whether its sandbox can be reached.
    pub connection: Connection,
    /// What is known to be true.
    pub conditions: Vec<&'a Condition>,
    /// The steps of its bootstrap.
    pub checklist: Vec<StepReport<'a>>,
    /// What the agent may do.
    pub capabilities: &'a Capabilities,
    /// Until when its sandbox is kept for people to look at.
    pub kept_until: Option<Timestamp>,
    /// What the release proved; none while there was no release.
    pub certificate: Option<&'a Certified>,
}

/// A cause as it is told.
#[derive(Debug, Clone, Serialize)]
pub struct CauseReport<'a> {
    /// What sort of thing it is.
    pub class: CauseClass,
    /// What happened, in one sentence.
    pub message: &'a str,
    /// What to do, in one sentence.
    pub action: &'static str,
    /// Whether another attempt may come out otherwise.
    pub retryable: bool,
    /// The step of the bootstrap in which it happened.
    pub step: Option<&'a str>,
    /// The attempt in which it happened.
    pub attempt: u32,
}

/// A step of the checklist as it is told.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport<'a> {
    /// Its name.
    pub step: &'a str,
    /// How it stands.
    pub status: StepStatus,
    /// What should be found.
    pub expected: &'a str,
    /// What was found.
    pub found: Option<&'a str>,
    /// The exit code of the command that decided.
    pub exit_code: Option<i32>,
    /// How long it took.
    pub seconds: Option<f64>,
    /// How often it was tried.
    pub tries: u32,
    /// The end of what it wrote.
    pub tail: Option<&'a str>,
}

impl<'a> RunReport<'a> {
    /// Tells a run.
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
