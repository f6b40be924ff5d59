//! The bridge: the request that starts it, and the commands that follow.
//!
//! # Files below the bridge's directory
//!
//! | name | content |
//! |---|---|
//! | `lock` | held (`flock`) by the one bridge that serves here; its process id |
//! | `spool/` | the events, as frames, in segments named by their first number |
//! | `acknowledged` | the last event number that the supervisor has stored |
//! | `commands/KEY.json` | a waiting [`BridgeCommand`]; once taken, an empty `KEY.done` replaces it |
//! | `questions/REQUEST` | a question, held (`flock`) by the process that waits for the answer |
//! | `answers/REQUEST` | the answer to a question |
//! | `sign` | changes with every message of the supervisor |
//! | `terms` | the settings of the request that `tail` needs |
//! | `turn` | held by the one `exec` that runs a turn |
//! | `log` | messages that a bridge cannot report otherwise |
//!
//! A bridge that is started where another one has died continues the same spool: numbers never
//! start over, and an interrupted turn ends as killed. Starting a bridge where one already serves
//! is harmless: the caller gets the existing one.
//!
//! # Commands
//!
//! Commands are taken by the change time of their files, and by their keys where the times are
//! equal. A turn is taken when it begins; until then its file waits. A turn that is dropped because
//! of a [`BridgeCommand::Cancel`] is taken, and never begins. [`BridgeCommand::Stop`] is taken at the end of
//! the bridge. While a program waits for an answer, the limits of the turn are paused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::BridgeEvent;

/// The request that starts a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeRequest {
    /// The bridge's directory, created if it is missing.
    pub directory: String,
    /// The runtime.
    pub runtime: Runtime,
    /// The runtime's working directory.
    pub workspace: String,
    /// Variables of the runtime, on top of the sandbox's own. They may be secret.
    pub env: BTreeMap<String, String>,
    /// The interval between the signs of life that `tail` prints.
    pub heartbeat_ms: u64,
    /// How long the bridge waits for the supervisor. Without a running tail, a command or an
    /// acknowledgement for this long, it ends the runtime and itself.
    pub lease_ms: u64,
}

/// How turns are run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Runtime {
    /// One program per turn.
    Command {
        /// The program and its arguments. `{prompt}` in an argument stands for the prompt. If no
        /// argument contains it, the prompt is on standard input.
        command: Vec<String>,
    },
}

/// A command for a running bridge. Its key ensures that it is carried out once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum BridgeCommand {
    /// Runs a turn, after those that are queued.
    Turn {
        /// The prompt for the agent.
        prompt: String,
        /// The time after which the turn is killed.
        limit_ms: u64,
        /// The longest time without output.
        silence_ms: Option<u64>,
    },
    /// Answers a question.
    Answer {
        /// The question's request.
        request: String,
        /// The answer.
        text: String,
    },
    /// Ends the current turn, and drops those that are queued.
    Cancel,
    /// Ends the runtime and then the bridge. The program of the turn gets `SIGTERM` first, and is
    /// killed after the grace period.
    Stop {
        /// The grace period.
        grace_ms: u64,
    },
}

/// A status that `tail` prints beside the events. It has no number in the spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "sign", rename_all = "snake_case")]
pub enum Sign {
    /// The bridge is alive.
    Alive {
        /// The number of its newest event.
        newest: u64,
    },
    /// The bridge is gone; there are no more events than these.
    Ended {
        /// The number of its newest event.
        newest: u64,
    },
}

/// The content of a frame of `tail`. Events have their number in the spool, signs have number 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TailItem {
    /// The status of the bridge.
    Sign(Sign),
    /// An event.
    Event(BridgeEvent),
}
