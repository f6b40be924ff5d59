//! The course of the turns: what is still to be said, and where a driver that came back goes on.
//!
//! Prompts are told in one order: those of the workflow, then messages as they came. The bridge
//! takes each once by its key, so one that may have been told before is told again without harm.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use creel_bridge::event::Stream;
use tokio::time::Instant;

use crate::sandbox::Sandbox;
use crate::sanitise::{MaskStream, Masked};

use super::Drive;
use super::tail::Tail;

/// Something to be said to the agent.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// The key of the message that said it; none where the workflow does.
    pub(super) message: Option<String>,
}

/// What the loop of turns knows beside the records.
pub(super) struct Course {
    pub(super) sandbox: Arc<dyn Sandbox>,
    pub(super) tail: Tail,
    /// What is still to be said to the agent.
    pub(super) prompts: VecDeque<Prompt>,
    /// Whether a turn was asked for and has not ended.
    pub(super) is_busy: bool,
    /// What is masked across the pieces of each stream.
    streams: [MaskStream; 2],
    /// Up to here the spool was on record when this driver began.
    replayed: u64,
    /// The keys of commands that the bridge has taken, as far as this driver heard of it.
    pub(super) taken: HashSet<String>,
    /// When something was heard last.
    pub(super) heard_at: Instant,
    /// When the run began to wait for a person.
    pub(super) waiting_since: Option<Instant>,
    /// How many bridges were started.
    pub(super) bridges: u32,
}

impl Drive {
    /// Plans the turns, or what is left of them behind those that began already.
    pub(super) fn course(&self, sandbox: Arc<dyn Sandbox>) -> Course {
        let (state, task) = (self.journal.state(), &self.workflow.task);
        let prompts = std::iter::once(&task.prompt).chain(&task.follow_ups);
        let prompts = prompts.map(|text| Prompt { text: text.clone(), message: None });
        let begun = usize::try_from(state.turns).unwrap_or(usize::MAX);
        // What was held back of a turn's words is made again from its beginning.
        let from = state.open_turn.unwrap_or(state.spooled) + 1;
        Course {
            tail: self.tail(&sandbox, from),
            sandbox,
            prompts: prompts.skip(begun).collect(),
            is_busy: state.open_turn.is_some(),
            streams: [self.masker.stream(), self.masker.stream()],
            replayed: state.spooled,
            taken: HashSet::new(),
            heard_at: Instant::now(),
            waiting_since: None,
            bridges: 1,
        }
    }

    /// Follows the spool from an event on.
    pub(super) fn tail(&self, sandbox: &Arc<dyn Sandbox>, from: u64) -> Tail {
        Tail::follow(Arc::clone(sandbox), self.bridge_directory(sandbox.as_ref()), from)
    }
}

impl Course {
    /// Returns whether an event of the spool was on record before this driver began.
    pub(super) fn is_replayed(&self, seq: u64) -> bool {
        seq <= self.replayed
    }

    /// Takes words of the agent; returns what may be shown by now.
    pub(super) fn feed(&mut self, stream: Stream, text: &str) -> Masked {
        self.streams[stream as usize].feed(text.as_bytes())
    }

    /// Ends a stream; returns what was held back of it.
    pub(super) fn finish(&mut self, stream: Stream, fresh: MaskStream) -> Masked {
        std::mem::replace(&mut self.streams[stream as usize], fresh).finish()
    }
}
