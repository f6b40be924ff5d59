//! The events of a run, as they are stored and shown: append-only, typed, numbered.

use creel_bridge::event::{Stream, TurnEnding};
use creel_sanitise::{Diagnostic, Masked};
use serde::{Deserialize, Serialize};

use super::capability::{Ability, Capabilities, Capability};
use super::cause::Cause;
use super::checklist::Step;
use super::condition::Condition;
use super::phase::{Connection, Phase};
use super::state::{Certified, RunState};

/// Where an attempt begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptFrom {
    /// With a new sandbox.
    Scratch,
    /// With the checklist, in the sandbox that was kept.
    Bootstrap,
}

/// One event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// The run was requested. This is always the first event.
    Queued,
    /// The log has lost events, and the state from the row replaces them.
    EventsLost {
        /// The number of the first lost event.
        first: u64,
        /// The number of the last lost event.
        last: u64,
        /// The state in the row.
        state: Box<RunState>,
    },
    /// An attempt began.
    AttemptStarted {
        /// Its number, from 1.
        attempt: u32,
        /// Where it begins.
        from: AttemptFrom,
    },
    /// The run entered a phase.
    PhaseEntered {
        /// The phase.
        phase: Phase,
    },
    /// The connection to its sandbox changed.
    ConnectionChanged {
        /// The new connection state.
        connection: Connection,
    },
    /// A condition changed.
    ConditionChanged {
        /// The new condition.
        condition: Condition,
    },
    /// A step of the checklist began. Recorded before the work on it starts.
    StepStarted {
        /// The step.
        step: Step,
    },
    /// A step of the checklist ended.
    StepEnded {
        /// The step.
        step: Step,
    },
    /// The capabilities of the agent were probed.
    CapabilitiesProbed {
        /// The result of the probe.
        capabilities: Capabilities,
    },
    /// A capability changed.
    CapabilityChanged {
        /// The capability.
        capability: Capability,
        /// Its new value.
        ability: Ability,
    },
    /// All steps are done. Only after this event may the bridge and the agent start.
    BootstrapOk,
    /// The bridge runs.
    BridgeStarted {
        /// Its version.
        version: Masked,
    },
    /// The runtime is ready for turns.
    RuntimeReady {
        /// Its version.
        version: Option<Masked>,
    },
    /// A turn began.
    TurnStarted {
        /// Its number.
        turn: u32,
        /// The number of this try of the turn.
        attempt: u32,
        /// The model.
        model: Option<Masked>,
    },
    /// The agent wrote output.
    Text {
        /// The turn.
        turn: u32,
        /// The stream of the output.
        stream: Stream,
        /// The text.
        text: Masked,
    },
    /// The agent wrote more than the log of a run accepts. The excess was counted and dropped.
    TextDropped {
        /// The turn.
        turn: u32,
        /// The number of pieces of output.
        pieces: u64,
        /// The total number of bytes.
        bytes: u64,
    },
    /// The agent waits for a user.
    InputRequested {
        /// The turn.
        turn: u32,
        /// The id that an answer refers to.
        request: Masked,
        /// The question.
        question: Masked,
    },
    /// An answer reached the agent.
    InputGiven {
        /// The request it answers.
        request: Masked,
    },
    /// A user's message was accepted. Its text is stored elsewhere.
    MessageTaken {
        /// The key of the message.
        key: Masked,
    },
    /// A turn ended.
    TurnEnded {
        /// Its number.
        turn: u32,
        /// How it ended.
        how: TurnOutcome,
    },
    /// An error ended the attempt, or a symptom of that error was seen.
    CauseLatched {
        /// The cause.
        cause: Cause,
    },
    /// A user cancelled the run.
    CancelRequested,
    /// A teardown step ended. It never changes the cause.
    TeardownEnded {
        /// Its name.
        name: Masked,
        /// How it ended.
        found: Diagnostic,
    },
    /// The sandbox is kept for inspection.
    Kept {
        /// The end of that time, in milliseconds since the epoch.
        until_ms: i64,
    },
    /// The release of the run's resources ended, completely or not.
    Released {
        /// The certificate of the release.
        certificate: Certified,
    },
}

/// How a turn ended, in a form that may be stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ended", rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The program ended with this code.
    Exited {
        /// The code.
        code: i32,
    },
    /// A signal ended it.
    Killed {
        /// Its number.
        signal: i32,
    },
    /// It was stopped at its time limit.
    TimedOut,
    /// It was stopped because it wrote nothing.
    Silent,
    /// It was cancelled.
    Cancelled,
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: Diagnostic,
    },
}

impl TurnOutcome {
    /// Converts what the bridge reports. Its text is passed through `diagnose`.
    pub fn of(ending: TurnEnding, diagnose: impl FnOnce(&str) -> Diagnostic) -> Self {
        match ending {
            TurnEnding::Exited { code } => Self::Exited { code },
            TurnEnding::Killed { signal } => Self::Killed { signal },
            TurnEnding::TimedOut => Self::TimedOut,
            TurnEnding::Silent => Self::Silent,
            TurnEnding::Cancelled => Self::Cancelled,
            TurnEnding::NotStarted { reason } => Self::NotStarted { reason: diagnose(&reason) },
        }
    }
}

/// An event with its position in the log of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logged {
    /// Its number, from 1 without gaps.
    pub sequence: u64,
    /// When it was recorded, in milliseconds since the epoch.
    pub at_ms: i64,
    /// Its number in the bridge's spool, if it came from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spooled: Option<u64>,
    /// The event.
    #[serde(flatten)]
    pub event: RunEvent,
}
