//! What happens to a run, as stored and shown: append-only, typed, numbered.

use creel_bridge::event::{Stream, TurnEnding};
use serde::{Deserialize, Serialize};

use crate::sanitise::{Diagnostic, Masked};

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

/// One thing that happened to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// Somebody asked for it: the first event of all.
    Queued,
    /// The log has lost events; the row of the run had what they made of it.
    EventsLost {
        /// The number of the first lost event.
        first: u64,
        /// The number of the last lost event.
        last: u64,
        /// The run as its row had it.
        state: Box<RunState>,
    },
    /// An attempt began.
    AttemptStarted {
        /// Its number, from 1.
        attempt: u32,
        /// Where it begins.
        from: AttemptFrom,
    },
    /// It entered a phase.
    PhaseEntered {
        /// Which.
        phase: Phase,
    },
    /// The connection to its sandbox changed.
    ConnectionChanged {
        /// How it is now.
        connection: Connection,
    },
    /// A condition changed.
    ConditionChanged {
        /// How it is now.
        condition: Condition,
    },
    /// A step of the checklist began; recorded before it is worked on.
    StepStarted {
        /// The step.
        step: Step,
    },
    /// A step of the checklist ended.
    StepEnded {
        /// The step.
        step: Step,
    },
    /// What the agent may do was probed.
    CapabilitiesProbed {
        /// What is known.
        capabilities: Capabilities,
    },
    /// A capability turned out otherwise.
    CapabilityChanged {
        /// Which.
        capability: Capability,
        /// What is known now.
        ability: Ability,
    },
    /// Every step is done: bridge and agent may start, and never before.
    BootstrapOk,
    /// The bridge runs.
    BridgeStarted {
        /// Its version.
        version: Masked,
    },
    /// The runtime takes turns.
    RuntimeReady {
        /// Its version.
        version: Option<Masked>,
    },
    /// A turn began.
    TurnStarted {
        /// Its number.
        turn: u32,
        /// Which go at it.
        attempt: u32,
        /// The model.
        model: Option<Masked>,
    },
    /// The agent said something.
    Text {
        /// The turn.
        turn: u32,
        /// Where it was written.
        stream: Stream,
        /// What.
        text: Masked,
    },
    /// The agent said more than the log of a run takes; it was counted and dropped.
    TextDropped {
        /// The turn.
        turn: u32,
        /// How many pieces of output.
        pieces: u64,
        /// How many bytes in all.
        bytes: u64,
    },
    /// The agent waits for a person.
    InputRequested {
        /// The turn.
        turn: u32,
        /// What an answer names.
        request: Masked,
        /// What is asked.
        question: Masked,
    },
    /// An answer reached the agent.
    InputGiven {
        /// The request it answers.
        request: Masked,
    },
    /// A message of a person was taken up; its text is kept elsewhere.
    MessageTaken {
        /// The key it was sent under.
        key: Masked,
    },
    /// A turn ended.
    TurnEnded {
        /// Its number.
        turn: u32,
        /// How.
        how: TurnOutcome,
    },
    /// Something went wrong that ends the attempt, or is a symptom of it.
    CauseLatched {
        /// What.
        cause: Cause,
    },
    /// Somebody asked for its end.
    CancelRequested,
    /// A teardown step ended; it never changes the cause.
    TeardownEnded {
        /// Its name.
        name: Masked,
        /// How.
        found: Diagnostic,
    },
    /// The sandbox is left for people to look at, until then.
    Kept {
        /// Until when, in milliseconds since the epoch.
        until_ms: i64,
    },
    /// What it took was given back, or not.
    Released {
        /// What the certificate says.
        certificate: Certified,
    },
}

/// How a turn ended, in words that may be kept.
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
    /// It was cut off at its limit.
    TimedOut,
    /// It was cut off because it said nothing.
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
    /// Takes what the bridge says; words in it are made fit to be kept.
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

/// An event with its place in the log of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logged {
    /// Its number, from 1 without gaps.
    pub sequence: u64,
    /// When it was recorded, in milliseconds since the epoch.
    pub at_ms: i64,
    /// Its number in the spool of the bridge, where it came from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spooled: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub event: RunEvent,
}
