//! The state of the turn loop: which prompts are left, and where a resumed driver continues.
//!
//! Prompts are sent in a fixed order: those of the workflow first, then messages
//! as they arrived. The bridge accepts each key only once, so a prompt that may
//! have been sent before can safely be sent again.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use creel_bridge::event::Stream;
use creel_sanitise::{MaskStream, Masked};
use tokio::time::Instant;

use crate::sandbox::Sandbox;

use super::Drive;
use super::tail::Tail;

/// A prompt for the agent.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// The key of its message, or `None` for a prompt of the workflow.
    pub(super) message: Option<String>,
}

/// The state of the turn loop that is not in the records.
pub(super) struct TurnLoop {
    pub(super) sandbox: Arc<dyn Sandbox>,
    pub(super) tail: Tail,
    /// The prompts that are left.
    pub(super) prompts: VecDeque<Prompt>,
    /// Whether a turn was requested and has not ended.
    pub(super) is_busy: bool,
    /// Masks each stream across the boundaries of its chunks.
    streams: [MaskStream; 2],
    /// The newest spool event that was on record when this driver began.
    replayed: u64,
    /// The keys of commands that the bridge has accepted, as far as this driver knows.
    pub(super) accepted: HashSet<String>,
    /// The time of the last event or sign of life.
    pub(super) last_seen_at: Instant,
    /// The time at which the run began to wait for a user.
    pub(super) waiting_since: Option<Instant>,
    /// The number of bridges that were started.
    pub(super) bridges: u32,
}

impl Drive {
    /// Plans the turns that have not begun yet.
    pub(super) fn turn_loop(&self, sandbox: Arc<dyn Sandbox>) -> TurnLoop {
        let (state, task) = (self.journal.state(), &self.workflow.task);
        let prompts = std::iter::once(&task.prompt).chain(&task.follow_ups);
        let prompts = prompts.map(|text| Prompt { text: text.clone(), message: None });
        let begun = usize::try_from(state.turns).unwrap_or(usize::MAX);
        // The text that was held back is restored by replaying the open turn from its beginning.
        let from = state.open_turn.unwrap_or(state.spooled) + 1;
        TurnLoop {
            tail: self.tail(&sandbox, from),
            sandbox,
            prompts: prompts.skip(begun).collect(),
            is_busy: state.open_turn.is_some(),
            streams: [self.masker.stream(), self.masker.stream()],
            replayed: state.spooled,
            accepted: HashSet::new(),
            last_seen_at: Instant::now(),
            waiting_since: None,
            bridges: 1,
        }
    }

    /// Follows the spool, starting at an event number.
    pub(super) fn tail(&self, sandbox: &Arc<dyn Sandbox>, from: u64) -> Tail {
        Tail::follow(Arc::clone(sandbox), self.bridge_directory(sandbox.as_ref()), from)
    }
}

impl TurnLoop {
    /// Returns whether an event of the spool was on record before this driver began.
    pub(super) fn is_replayed(&self, seq: u64) -> bool {
        seq <= self.replayed
    }

    /// Feeds agent output. Returns the text that may be shown now.
    pub(super) fn feed(&mut self, stream: Stream, text: &str) -> Masked {
        self.streams[stream as usize].feed(text.as_bytes())
    }

    /// Ends a stream. Returns the text that was held back.
    pub(super) fn finish(&mut self, stream: Stream, fresh: MaskStream) -> Masked {
        std::mem::replace(&mut self.streams[stream as usize], fresh).finish()
    }
}
