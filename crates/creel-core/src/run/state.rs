//! What is known of a run: what its events make of it, live and in replay alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reap::Entry;

use super::capability::Capabilities;
use super::cause::{Cause, CauseClass, Causes};
use super::checklist::Step;
use super::condition::{Condition, ConditionType};
use super::event::{AttemptFrom, Logged, RunEvent};
use super::phase::{Connection, Phase};

/// What a release proved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certified {
    /// Whether the absence of everything was verified.
    pub verified: bool,
    /// What is left.
    pub left: Vec<Entry>,
}

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// What an answer names.
    pub request: String,
    /// The turn that waits.
    pub turn: u32,
}

/// What is known of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// The number of the newest event that this holds.
    pub sequence: u64,
    /// The newest event of the bridge's spool that this holds.
    pub spooled: u64,
    /// Where it is.
    pub phase: Phase,
    /// Whether its sandbox can be reached.
    pub connection: Connection,
    /// The attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// How many turns began in this attempt.
    pub turns: u32,
    /// Why it did not go on.
    pub causes: Causes,
    /// What is known to be true.
    pub conditions: BTreeMap<ConditionType, Condition>,
    /// The steps of this attempt's bootstrap.
    pub checklist: Vec<Step>,
    /// Whether all of them are done.
    pub bootstrap_ok: bool,
    /// What the agent may do.
    pub capabilities: Capabilities,
    /// The question that waits.
    pub request: Option<OpenRequest>,
    /// Whether somebody asked for its end.
    pub cancel_requested: bool,
    /// Until when the sandbox is kept, in milliseconds since the epoch.
    pub kept_until_ms: Option<i64>,
    /// What the release proved.
    pub certificate: Option<Certified>,
}

/// An event that cannot follow what is known.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{event} cannot happen to a run that is {phase}")]
pub struct IllegalEvent {
    /// What should have happened.
    event: String,
    /// Where the run is.
    phase: Phase,
}

impl RunState {
    /// Returns a run of which nothing has happened yet.
    pub fn new() -> Self {
        Self {
            sequence: 0,
            spooled: 0,
            phase: Phase::Queued,
            connection: Connection::None,
            attempt: 0,
            turns: 0,
            causes: Causes::default(),
            conditions: BTreeMap::new(),
            checklist: Vec::new(),
            bootstrap_ok: false,
            capabilities: Capabilities::new(),
            request: None,
            cancel_requested: false,
            kept_until_ms: None,
            certificate: None,
        }
    }

    /// Returns the cause that counts: the first of this attempt.
    pub fn cause(&self) -> Option<&Cause> {
        self.causes.first_of(self.attempt)
    }

    /// Returns the final phase that the attempt has earned.
    pub fn verdict(&self) -> Phase {
        match self.cause() {
            Some(cause) if cause.class == CauseClass::Cancelled => Phase::Cancelled,
            Some(_) => Phase::Failed,
            None => Phase::Succeeded,
        }
    }

    /// Applies what happened.
    ///
    /// # Errors
    ///
    /// Fails when that cannot follow; then nothing is changed.
    pub fn apply(&mut self, logged: &Logged) -> Result<(), IllegalEvent> {
        self.check(&logged.event)?;
        self.change(&logged.event);
        self.sequence = logged.sequence;
        self.spooled = self.spooled.max(logged.spooled.unwrap_or(0));
        Ok(())
    }

    /// Says whether an event may follow.
    fn check(&self, event: &RunEvent) -> Result<(), IllegalEvent> {
        let legal = match event {
            RunEvent::Queued => self.sequence == 0,
            RunEvent::AttemptStarted { attempt, from } => {
                let begins = self.phase == Phase::Queued || self.phase.is_final();
                let kept = *from == AttemptFrom::Scratch || self.kept_until_ms.is_some();
                begins && kept && *attempt == self.attempt + 1
            }
            RunEvent::PhaseEntered { phase } => self.may_enter(*phase),
            RunEvent::StepStarted { .. } | RunEvent::StepEnded { .. } | RunEvent::BootstrapOk => {
                let whole = !matches!(event, RunEvent::BootstrapOk)
                    || self.checklist.iter().all(Step::is_done);
                self.phase == Phase::Bootstrapping && whole
            }
            // Nothing starts on an incomplete workspace.
            RunEvent::BridgeStarted { .. }
            | RunEvent::RuntimeReady { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::Text { .. }
            | RunEvent::InputRequested { .. }
            | RunEvent::InputGiven { .. }
            | RunEvent::TurnEnded { .. } => self.bootstrap_ok,
            RunEvent::ConnectionChanged { .. }
            | RunEvent::ConditionChanged { .. }
            | RunEvent::CapabilitiesProbed { .. }
            | RunEvent::CapabilityChanged { .. }
            | RunEvent::MessageTaken { .. }
            | RunEvent::CauseLatched { .. }
            | RunEvent::CancelRequested
            | RunEvent::TeardownEnded { .. }
            | RunEvent::Kept { .. }
            | RunEvent::Released { .. } => !self.phase.is_final() || self.kept_until_ms.is_some(),
        };
        legal.then_some(()).ok_or_else(|| IllegalEvent { event: name_of(event), phase: self.phase })
    }

    fn may_enter(&self, phase: Phase) -> bool {
        let earned = !phase.is_final() || phase == self.verdict();
        let ready = phase != Phase::Ready || self.bootstrap_ok;
        self.attempt > 0 && self.phase.may_become(phase) && earned && ready
    }

    fn change(&mut self, event: &RunEvent) {
        match event {
            RunEvent::AttemptStarted { attempt, .. } => {
                *self = Self {
                    sequence: self.sequence,
                    causes: std::mem::take(&mut self.causes),
                    attempt: *attempt,
                    ..Self::new()
                };
            }
            RunEvent::PhaseEntered { phase } => self.phase = *phase,
            RunEvent::ConnectionChanged { connection } => self.connection = *connection,
            RunEvent::ConditionChanged { condition } => {
                self.conditions.insert(condition.about, condition.clone());
            }
            RunEvent::StepStarted { step } | RunEvent::StepEnded { step } => self.note_step(step),
            RunEvent::CapabilitiesProbed { capabilities } => {
                self.capabilities.clone_from(capabilities);
            }
            RunEvent::CapabilityChanged { capability, ability } => {
                self.capabilities.insert(*capability, ability.clone());
            }
            RunEvent::BootstrapOk => self.bootstrap_ok = true,
            RunEvent::TurnStarted { turn, .. } => self.turns = self.turns.max(*turn),
            RunEvent::InputRequested { turn, request, .. } => {
                self.request = Some(OpenRequest { request: request.clone(), turn: *turn });
            }
            RunEvent::InputGiven { .. } | RunEvent::TurnEnded { .. } => self.request = None,
            RunEvent::CauseLatched { cause } => self.causes.latch(cause.clone()),
            RunEvent::CancelRequested => self.cancel_requested = true,
            RunEvent::Kept { until_ms } => self.kept_until_ms = Some(*until_ms),
            RunEvent::Released { certificate } => {
                self.kept_until_ms = None;
                self.certificate = Some(certificate.clone());
            }
            RunEvent::Queued
            | RunEvent::BridgeStarted { .. }
            | RunEvent::RuntimeReady { .. }
            | RunEvent::Text { .. }
            | RunEvent::MessageTaken { .. }
            | RunEvent::TeardownEnded { .. } => {}
        }
    }

    fn note_step(&mut self, step: &Step) {
        match self.checklist.iter_mut().find(|known| known.step == step.step) {
            Some(known) => known.clone_from(step),
            None => self.checklist.push(step.clone()),
        }
    }
}

impl Default for RunState {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the name of an event as it is stored.
fn name_of(event: &RunEvent) -> String {
    let stored = serde_json::to_value(event).unwrap_or_default();
    stored["event"].as_str().unwrap_or("this").to_owned()
}
