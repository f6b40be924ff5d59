//! Events of a runtime.
//!
//! The same events describe a plain program per turn, programs that speak JSON lines, and gateways.
//! A reader ignores event kinds that it does not know.

use serde::{Deserialize, Serialize};

/// One of the two output streams of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// One event of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BridgeEvent {
    /// The bridge runs; the first event after each start of a bridge.
    BridgeStarted {
        /// The version of this program.
        version: String,
    },
    /// The runtime can take turns.
    RuntimeReady {
        /// The runtime's version, if it has one.
        version: Option<String>,
    },
    /// A command of the supervisor was taken. The same key is never taken twice.
    CommandTaken {
        /// The command's key.
        key: String,
    },
    /// A turn began.
    TurnStarted {
        /// The turn's number, from 1.
        turn: u32,
        /// The attempt at this turn, from 1.
        attempt: u32,
        /// The model, if the runtime names one.
        model: Option<String>,
    },
    /// The runtime wrote output.
    Text {
        /// The turn.
        turn: u32,
        /// The stream it wrote to.
        stream: Stream,
        /// The text. Bytes that are not valid UTF-8 are replaced.
        text: String,
    },
    /// The runtime needs an answer from a person before it goes on.
    InputRequested {
        /// The turn.
        turn: u32,
        /// The id that an answer refers to.
        request: String,
        /// The question.
        question: String,
    },
    /// An answer reached the runtime.
    InputGiven {
        /// The id of the request that the answer is for.
        request: String,
    },
    /// A turn ended.
    TurnEnded {
        /// The turn's number.
        turn: u32,
        /// How it ended.
        how: TurnEnding,
    },
    /// The runtime is gone. No more events follow.
    RuntimeEnded {
        /// The reason, in one sentence.
        reason: String,
    },
    /// An event of a later version.
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
        /// The signal's number.
        signal: i32,
    },
    /// The program was still running at the turn's limit and was killed.
    TimedOut,
    /// The program wrote nothing for too long and was killed.
    Silent,
    /// The turn was cancelled by a command.
    Cancelled,
    /// The program could not be started, which is not the agent's fault.
    NotStarted {
        /// The reason.
        reason: String,
    },
}
