//! One command in a sandbox: the request, and the frames that report on it.
//!
//! `creel-bridge exec` reads an [`ExecRequest`] and answers with frames of [`ExecEvent`], numbered from
//! 1. The last frame is [`ExecEvent::Ended`] or [`ExecEvent::NotStarted`].
//!
//! The command leads its own process group, in the session of its `exec`. When the command ends,
//! the rest of that session ends with it. A process that has created its own session, as daemons
//! do, lives on. It must not write to the command's streams, because they have no reader by then.
//!
//! A command is killed when it reaches its limit, when it writes nothing for too long, or when the
//! caller hangs up. Everything below it is then killed too, including daemons, but never a bridge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::Stream;

/// A command to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables on top of the sandbox's own environment. They may be secret.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory. `None` means that of the `creel-bridge` process.
    #[serde(default)]
    pub directory: Option<String>,
    /// The standard input, in base64. It may be secret.
    #[serde(default)]
    pub input: String,
    /// The time after which the command is killed.
    pub limit_ms: u64,
    /// The longest time without output. `None` means no limit.
    #[serde(default)]
    pub silence_ms: Option<u64>,
}

/// A report on a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "heard", rename_all = "snake_case")]
pub enum ExecEvent {
    /// The command runs.
    Started {
        /// The process id inside the sandbox.
        pid: u32,
    },
    /// The command wrote output.
    Output {
        /// The stream it wrote to.
        stream: Stream,
        /// The bytes, in base64.
        bytes: String,
    },
    /// The command has ended, and so has everything that ends with it.
    Ended(ExecEnding),
    /// The command could not be started.
    NotStarted {
        /// The reason.
        reason: String,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum ExecEnding {
    /// The command exited by itself.
    Code {
        /// Its exit code.
        code: i32,
    },
    /// A signal ended the command. It came from another process, or from `exec` after the caller
    /// hung up.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The command was killed at its limit.
    TimedOut,
    /// The command was killed because it wrote nothing for too long.
    Silent,
}
