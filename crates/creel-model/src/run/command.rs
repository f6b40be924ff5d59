//! A command that another process sends to the driver of a run.

use std::fmt;

use creel_sanitise::Masked;
use serde::{Deserialize, Serialize};

/// A command for the driver of a run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunCommand {
    /// Ends the run and releases everything it holds.
    Cancel,
    /// Sends a message to the agent. The text is in a separate file, named by the command's key.
    Message {
        /// The question that the message answers, or `None` for the pending one.
        request: Option<Masked>,
    },
    /// Continues after a pause.
    Resume,
}

impl RunCommand {
    /// Returns the name of the command.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Message { .. } => "message",
            Self::Resume => "resume",
        }
    }
}

/// Shows only the kind of the command, never the text of a message.
impl fmt::Debug for RunCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
