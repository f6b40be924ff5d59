//! One command in a sandbox: what is ordered, and what is heard of it.
//!
//! `creel-bridge exec` reads an [`Order`] and answers with frames of [`Heard`],
//! numbered from 1; the last one is [`Heard::Ended`] or [`Heard::NotStarted`].
//! The command leads a process group of its own, in the session of its `exec`.
//! What is left of that session ends with the command; what has made a session of
//! its own, as daemons do, lives on, if it writes elsewhere than to the command's
//! streams, which nobody reads then. A command that is killed, because the limit
//! is reached, because nothing was written for too long or because whoever ordered
//! it hangs up, takes everything below it along, daemons too; but never a bridge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::Stream;

/// A command to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables on top of the sandbox's own environment. They may be secret.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it starts; `None` means where the program in the sandbox stands.
    #[serde(default)]
    pub directory: Option<String>,
    /// What it reads, in base64; it may be secret.
    #[serde(default)]
    pub input: String,
    /// When it is killed.
    pub limit_ms: u64,
    /// How long it may write nothing; `None` means as long as it likes.
    #[serde(default)]
    pub silence_ms: Option<u64>,
}

/// What is heard of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "heard", rename_all = "snake_case")]
pub enum Heard {
    /// It runs.
    Started {
        /// Its process, as the sandbox numbers it.
        pid: u32,
    },
    /// It wrote something.
    Output {
        /// Where to.
        stream: Stream,
        /// What, in base64.
        bytes: String,
    },
    /// It has ended, and so has all that ends with it.
    Ended(Ending),
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: String,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Ending {
    /// By itself.
    Code {
        /// Its exit code.
        code: i32,
    },
    /// By a signal: of somebody else, or the one that kills it when whoever ordered it hangs up.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// It was killed at its limit.
    TimedOut,
    /// It was killed because it had been silent for too long.
    Silent,
}
