//! What happens in a runtime, whichever it is.
//!
//! The same words cover a plain program per turn, programs that speak JSON
//! lines, and gateways. A reader ignores sorts of events that it does not know.

use serde::{Deserialize, Serialize};

/// One of the two streams of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// The standard output.
    Output,
    /// The standard error.
    Error,
}

/// One event of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BridgeEvent {
    /// The bridge runs; the first event of each of its lives.
    BridgeStarted {
        /// The version of this program.
        version: String,
    },
    /// The runtime can take turns.
    RuntimeReady {
        /// Its version, where it has one.
        version: Option<String>,
    },
    /// A command of the supervisor was taken; the same key is never taken twice.
    CommandTaken {
        /// Its key.
        key: String,
    },
    /// A turn began.
    TurnStarted {
        /// Its number, from 1.
        turn: u32,
        /// Which go at this turn, from 1.
        attempt: u32,
        /// The model, where the runtime names one.
        model: Option<String>,
    },
    /// The runtime said something.
    Text {
        /// The turn.
        turn: u32,
        /// Where it was written.
        stream: Stream,
        /// What; bytes that are no UTF-8 are replaced.
        text: String,
    },
    /// The runtime needs an answer from a person before it goes on.
    InputRequested {
        /// The turn.
        turn: u32,
        /// What answers name.
        request: String,
        /// What is asked.
        question: String,
    },
    /// An answer reached the runtime.
    InputGiven {
        /// The request it answers.
        request: String,
    },
    /// A turn ended.
    TurnEnded {
        /// Its number.
        turn: u32,
        /// How.
        how: TurnEnding,
    },
    /// The runtime is gone and nothing more will come of it.
    RuntimeEnded {
        /// In one sentence, why.
        reason: String,
    },
    /// Something of a later version.
    #[serde(other)]
    Unknown,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ended", rename_all = "snake_case")]
pub enum TurnEnding {
    /// The program ended with this code; 0 is success.
    Exited {
        /// The code.
        code: i32,
    },
    /// A signal ended it.
    Killed {
        /// Its number.
        signal: i32,
    },
    /// It was still running at the turn's limit, and was killed.
    TimedOut,
    /// It wrote nothing for too long, and was killed.
    Silent,
    /// It was cancelled by command.
    Cancelled,
    /// It could not be started: not the agent's fault.
    NotStarted {
        /// Why.
        reason: String,
    },
}
