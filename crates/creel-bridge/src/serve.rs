//! The bridge: what it is told at its start, and what it is told later.
//!
//! # Files below the bridge's directory
//!
//! | name | what it is |
//! |---|---|
//! | `lock` | held (`flock`) by the one bridge that serves here; its process id |
//! | `spool/` | the events, as frames, in segments named by their first number |
//! | `acknowledged` | up to which number the supervisor has them for good |
//! | `commands/KEY.json` | a [`Command`] to be taken; replaced by an empty `KEY.done` when it was |
//! | `questions/REQUEST` | a question, held (`flock`) by whoever waits for the answer |
//! | `answers/REQUEST` | the answer to a question |
//! | `sign` | changes with every sign of the supervisor |
//! | `terms` | what `tail` must know of the order |
//! | `turn` | held by the one `exec` that carries out a turn |
//! | `log` | what a bridge could not say otherwise |
//!
//! A bridge that is started again where one has died goes on in the same spool:
//! numbers never start over, and a turn that was cut is ended as killed. To start
//! a bridge where one serves is no harm: that one is meant then.
//!
//! # Commands
//!
//! Commands are taken in the order in which their files came to be, and in that of
//! their keys where the clock cannot tell. A turn is taken when it begins: until then its file waits. A turn that is forgotten because of a
//! [`Command::Cancel`] is taken, and never begins. [`Command::Stop`] is taken at the
//! end of the bridge. While somebody waits for an answer, the limits of the turn
//! stand still.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::BridgeEvent;

/// What the bridge is told at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its directory; made if it is missing.
    pub directory: String,
    /// The runtime.
    pub runtime: Runtime,
    /// Where the runtime starts.
    pub workspace: String,
    /// Variables of the runtime, on top of the sandbox's own. They may be secret.
    pub env: BTreeMap<String, String>,
    /// How often a sign of life is printed by `tail`.
    pub heartbeat_ms: u64,
    /// Without a sign of the supervisor (a tail that runs, a command, an acknowledgement) for
    /// this long the bridge ends the runtime and itself.
    pub lease_ms: u64,
}

/// How turns are carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Runtime {
    /// A program per turn.
    Command {
        /// The program and its arguments; `{prompt}` in one of them stands for the prompt. Where
        /// none has it, the prompt is on the standard input.
        command: Vec<String>,
    },
}

/// What the bridge is told later; each under a key that makes it happen once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Take a turn, after those that are queued.
    Turn {
        /// What the agent is told.
        prompt: String,
        /// When the turn is cut off.
        limit_ms: u64,
        /// How long it may say nothing.
        silence_ms: Option<u64>,
    },
    /// Give the answer to a question.
    Answer {
        /// The question's request.
        request: String,
        /// The answer.
        text: String,
    },
    /// End the turn that is under way, and forget those that are queued.
    Cancel,
    /// End the runtime with grace (the program of the turn gets `SIGTERM`), then by force; then
    /// end.
    Stop {
        /// How long it may take.
        grace_ms: u64,
    },
}

/// What `tail` prints beside the events: it has no number of its own in the spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "sign", rename_all = "snake_case")]
pub enum Sign {
    /// The bridge lives, and this is its newest event.
    Alive {
        /// The newest number.
        newest: u64,
    },
    /// The bridge is gone; there are no more events than these.
    Ended {
        /// The newest number.
        newest: u64,
    },
}

/// What a frame of `tail` says. Events have their number in the spool, signs have number 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Told {
    /// How the bridge is.
    Sign(Sign),
    /// What happened.
    Event(BridgeEvent),
}
