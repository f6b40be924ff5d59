//! The state of a run: the result of applying its events, live and in replay.

use std::collections::BTreeMap;

use creel_sanitise::Masked;
use serde::{Deserialize, Serialize};

use crate::certificate::CertificateEntry;

use super::capability::Capabilities;
use super::cause::{Cause, CauseClass, Causes};
use super::checklist::Step;
use super::condition::{Condition, ConditionType};
use super::event::{AttemptFrom, Logged, RunEvent};
use super::phase::{Connection, Phase};

/// The certificate of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certified {
    /// Whether it was verified that nothing is left.
    pub verified: bool,
    /// What is left.
    pub left: Vec<CertificateEntry>,
}

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The id that an answer refers to.
    pub request: Masked,
    /// The turn that waits.
    pub turn: u32,
}

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// The number of the newest applied event.
    pub sequence: u64,
    /// The newest applied event of the bridge's spool.
    pub spooled: u64,
    /// The phase it is in.
    pub phase: Phase,
    /// Whether its sandbox can be reached.
    pub connection: Connection,
    /// The attempt, from 1. 0 before the first.
    pub attempt: u32,
    /// How many turns began in this attempt.
    pub turns: u32,
    /// The spool number at which the current turn began, or `None` between turns.
    #[serde(default)]
    pub open_turn: Option<u64>,
    /// The key of the message that was delivered to the agent last.
    #[serde(default)]
    pub passed_on: Option<Masked>,
    /// Why it did not continue.
    pub causes: Causes,
    /// The known conditions.
    pub conditions: BTreeMap<ConditionType, Condition>,
    /// The steps of this attempt's bootstrap.
    pub checklist: Vec<Step>,
    /// Whether all of them are done.
    pub bootstrap_ok: bool,
    /// The capabilities of the agent.
    pub capabilities: Capabilities,
    /// The open question.
    pub request: Option<OpenRequest>,
    /// Whether a user cancelled the run.
    pub cancel_requested: bool,
    /// The time until which the sandbox is kept, in milliseconds since the epoch.
    pub kept_until_ms: Option<i64>,
    /// The certificate of the release.
    pub certificate: Option<Certified>,
    /// How much the agent has written in all attempts.
    #[serde(default, skip_serializing_if = "OutputCount::is_empty")]
    pub output: OutputCount,
}

/// The amount of an agent's output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputCount {
    /// The number of bytes in the log.
    pub logged_bytes: u64,
    /// The number of pieces that were dropped because the log was full.
    pub dropped_pieces: u64,
    /// The number of bytes in the dropped pieces.
    pub dropped_bytes: u64,
}

impl OutputCount {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An event that is illegal in the current state.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{event} cannot happen to a run that is {phase}")]
pub struct IllegalEvent {
    /// The name of the event.
    event: String,
    /// The phase of the run.
    phase: Phase,
}

impl RunState {
    /// Returns the state before the first event.
    pub fn new() -> Self {
        Self {
            sequence: 0,
            spooled: 0,
            phase: Phase::Queued,
            connection: Connection::None,
            attempt: 0,
            turns: 0,
            open_turn: None,
            passed_on: None,
            causes: Causes::default(),
            conditions: BTreeMap::new(),
            checklist: Vec::new(),
            bootstrap_ok: false,
            capabilities: Capabilities::new(),
            request: None,
            cancel_requested: false,
            kept_until_ms: None,
            certificate: None,
            output: OutputCount::default(),
        }
    }

    /// Returns the decisive cause: the first of this attempt.
    pub fn cause(&self) -> Option<&Cause> {
        self.causes.first_of(self.attempt)
    }

    /// Returns the final phase that results from the causes of the attempt.
    pub fn verdict(&self) -> Phase {
        match self.cause() {
            Some(cause) if cause.class == CauseClass::Cancelled => Phase::Cancelled,
            Some(_) => Phase::Failed,
            None => Phase::Succeeded,
        }
    }

    /// Applies an event.
    ///
    /// # Errors
    ///
    /// Fails when the event is illegal in this state. Then nothing is changed.
    pub fn apply(&mut self, logged: &Logged) -> Result<(), IllegalEvent> {
        self.check(&logged.event)?;
        self.change(logged);
        self.sequence = logged.sequence;
        self.spooled = self.spooled.max(logged.spooled.unwrap_or(0));
        Ok(())
    }

    /// Checks whether an event is legal in this state.
    fn check(&self, event: &RunEvent) -> Result<(), IllegalEvent> {
        let (begun, over) = (self.sequence > 0, self.phase.is_final());
        let legal = match event {
            RunEvent::Queued => !begun,
            RunEvent::EventsLost { last, state, .. } => {
                *last == state.sequence && state.sequence >= self.sequence
            }
            RunEvent::AttemptStarted { attempt, from } => {
                let begins = self.attempt == 0 || over;
                let kept = *from == AttemptFrom::Scratch || self.kept_until_ms.is_some();
                begun && begins && kept && *attempt == self.attempt + 1
            }
            RunEvent::PhaseEntered { phase } => self.may_enter(*phase),
            RunEvent::StepStarted { .. } | RunEvent::StepEnded { .. } => {
                self.is_bootstrapping() || self.phase == Phase::Provisioning
            }
            RunEvent::BootstrapOk => {
                let whole = !self.checklist.is_empty() && self.checklist.iter().all(Step::is_done);
                self.is_bootstrapping() && whole
            }
            // Nothing starts in an incomplete workspace.
            RunEvent::BridgeStarted { .. }
            | RunEvent::RuntimeReady { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::Text { .. }
            | RunEvent::TextDropped { .. }
            | RunEvent::InputRequested { .. }
            | RunEvent::InputGiven { .. }
            | RunEvent::TurnEnded { .. } => self.bootstrap_ok && !over,
            // A run that is over keeps its verdict, so no cause may be added.
            RunEvent::CauseLatched { cause } => {
                self.attempt > 0 && !over && cause.attempt == self.attempt
            }
            RunEvent::CapabilitiesProbed { .. }
            | RunEvent::CapabilityChanged { .. }
            | RunEvent::MessageTaken { .. }
            | RunEvent::CancelRequested
            | RunEvent::TeardownEnded { .. } => begun && !over,
            // A sandbox that is kept for inspection can still change until it is released.
            RunEvent::ConnectionChanged { .. }
            | RunEvent::ConditionChanged { .. }
            | RunEvent::Kept { .. }
            | RunEvent::Released { .. } => begun && (!over || self.kept_until_ms.is_some()),
        };
        legal.then_some(()).ok_or_else(|| IllegalEvent { event: name_of(event), phase: self.phase })
    }

    fn is_bootstrapping(&self) -> bool {
        self.phase == Phase::Bootstrapping && !self.bootstrap_ok
    }

    fn may_enter(&self, phase: Phase) -> bool {
        let earned = !phase.is_final() || phase == self.verdict();
        let ready = phase != Phase::Ready || self.bootstrap_ok;
        self.attempt > 0 && self.phase.may_become(phase) && earned && ready
    }

    fn change(&mut self, logged: &Logged) {
        match &logged.event {
            RunEvent::EventsLost { state, .. } => self.clone_from(state),
            RunEvent::AttemptStarted { attempt, .. } => {
                *self = Self {
                    sequence: self.sequence,
                    causes: std::mem::take(&mut self.causes),
                    output: self.output,
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
            RunEvent::TurnStarted { turn, .. } => {
                self.turns = self.turns.max(*turn);
                self.open_turn = Some(logged.spooled.unwrap_or(0));
            }
            RunEvent::Text { text, .. } => {
                self.output.logged_bytes += text.as_str().len() as u64;
            }
            RunEvent::TextDropped { pieces, bytes, .. } => {
                self.output.dropped_pieces += pieces;
                self.output.dropped_bytes += bytes;
            }
            RunEvent::InputRequested { turn, request, .. } => {
                self.request = Some(OpenRequest { request: request.clone(), turn: *turn });
            }
            RunEvent::InputGiven { request } => {
                // An answer to an older question leaves the newer one open.
                self.request.take_if(|open| open.request == *request);
            }
            RunEvent::TurnEnded { .. } => {
                self.request = None;
                self.open_turn = None;
            }
            RunEvent::MessageTaken { key } => self.passed_on = Some(key.clone()),
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

#[cfg(test)]
mod tests {

    use creel_sanitise::{Diagnostic, Masked};
    use proptest::prelude::*;

    use super::*;
    use crate::run::examples::{events_until_running, some_step, some_text};
    use crate::run::{
        Ability, Capability, ConditionStatus, ConditionType, StepStatus, TurnOutcome,
    };

    fn some_cause(class: CauseClass, attempt: u32) -> RunEvent {
        let cause = Cause::new(class, Diagnostic::ours("so it was"), attempt);
        RunEvent::CauseLatched { cause }
    }

    fn after(events: &[RunEvent]) -> RunState {
        let mut state = RunState::new();
        for event in events {
            next(&mut state, event).unwrap();
        }
        state
    }

    fn next(state: &mut RunState, event: &RunEvent) -> Result<(), IllegalEvent> {
        let sequence = state.sequence + 1;
        state.apply(&Logged { sequence, at_ms: 0, spooled: None, event: event.clone() })
    }

    fn any_of_run() -> BoxedStrategy<RunEvent> {
        let phase = proptest::sample::select(&Phase::ALL);
        let class = proptest::sample::select(CauseClass::ALL);
        let from = prop_oneof![Just(AttemptFrom::Scratch), Just(AttemptFrom::Bootstrap)];
        let certificate = Certified { verified: true, left: Vec::new() };
        prop_oneof![
            1 => Just(RunEvent::Queued),
            4 => (1..4_u32, from)
                .prop_map(|(attempt, from)| RunEvent::AttemptStarted { attempt, from }),
            12 => phase.prop_map(|phase| RunEvent::PhaseEntered { phase }),
            6 => (class, 0..4_u32).prop_map(|(class, attempt)| some_cause(class, attempt)),
            1 => Just(RunEvent::CancelRequested),
            2 => Just(RunEvent::Kept { until_ms: 5 }),
            2 => Just(RunEvent::Released { certificate }),
            1 => Just(RunEvent::MessageTaken { key: "k".into() }),
            1 => Just(RunEvent::ConnectionChanged { connection: Connection::Offline }),
            1 => Just(RunEvent::TeardownEnded {
                name: "t".into(),
                found: Diagnostic::ours("done"),
            }),
        ]
        .boxed()
    }

    fn any_of_bootstrap() -> BoxedStrategy<RunEvent> {
        let status = prop_oneof![
            Just(StepStatus::Running),
            Just(StepStatus::Passed),
            Just(StepStatus::Failed),
            Just(StepStatus::Tolerated),
        ];
        let step = (prop_oneof![Just("a"), Just("b")], status)
            .prop_map(|(name, status)| some_step(name, status));
        let ability = Ability { available: false, evidence: Diagnostic::ours("refused") };
        let condition = Condition {
            about: ConditionType::SandboxReady,
            status: ConditionStatus::True,
            reason: "Answers".into(),
            message: Diagnostic::ours("it answers"),
            last_transition_ms: 3,
        };
        let capabilities = Capabilities::from([(Capability::Network, ability.clone())]);
        prop_oneof![
            2 => step.clone().prop_map(|step| RunEvent::StepStarted { step }),
            4 => step.prop_map(|step| RunEvent::StepEnded { step }),
            5 => Just(RunEvent::BootstrapOk),
            1 => Just(RunEvent::CapabilitiesProbed { capabilities }),
            1 => Just(RunEvent::CapabilityChanged { capability: Capability::File, ability }),
            1 => Just(RunEvent::ConditionChanged { condition }),
        ]
        .boxed()
    }

    fn any_of_bridge() -> BoxedStrategy<RunEvent> {
        let request = prop_oneof![Just(Masked::ours("q1")), Just(Masked::ours("q2"))];
        prop_oneof![
            Just(RunEvent::BridgeStarted { version: "1".into() }),
            Just(RunEvent::RuntimeReady { version: None }),
            (1..5_u32).prop_map(|turn| RunEvent::TurnStarted { turn, attempt: 1, model: None }),
            Just(some_text()),
            request.clone().prop_map(|request| RunEvent::InputRequested {
                turn: 1,
                request,
                question: Masked::ours("may I?"),
            }),
            request.prop_map(|request| RunEvent::InputGiven { request }),
            Just(RunEvent::TurnEnded { turn: 1, how: TurnOutcome::Exited { code: 0 } }),
        ]
        .boxed()
    }

    /// Arbitrary events, most of which are illegal. Some sequences have a legal beginning.
    fn any_events() -> impl Strategy<Value = Vec<RunEvent>> {
        let one = prop_oneof![4 => any_of_run(), 3 => any_of_bootstrap(), 2 => any_of_bridge()];
        let beginning = (0..=events_until_running().len())
            .prop_map(|count| events_until_running().into_iter().take(count).collect::<Vec<_>>());
        (beginning, proptest::collection::vec(one, 0..60)).prop_map(|(mut all, rest)| {
            all.extend(rest);
            all
        })
    }

    /// Numbers the legal events, as a journal does.
    fn logged(events: &[RunEvent]) -> Vec<Logged> {
        let (mut state, mut log) = (RunState::new(), Vec::new());
        for (place, event) in (1_u64..).zip(events) {
            let spooled = (place % 3 == 0).then_some(place);
            let event = event.clone();
            let one = Logged { sequence: state.sequence + 1, at_ms: 0, spooled, event };
            if state.apply(&one).is_ok() {
                log.push(one);
            }
        }
        log
    }

    fn replayed(mut state: RunState, log: &[Logged]) -> RunState {
        for one in log {
            state.apply(one).expect("it was legal before");
        }
        state
    }

    fn is_of_bridge(event: &RunEvent) -> bool {
        matches!(
            event,
            RunEvent::BridgeStarted { .. }
                | RunEvent::RuntimeReady { .. }
                | RunEvent::TurnStarted { .. }
                | RunEvent::Text { .. }
                | RunEvent::TextDropped { .. }
                | RunEvent::InputRequested { .. }
                | RunEvent::InputGiven { .. }
                | RunEvent::TurnEnded { .. }
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_event_that_does_not_fit_changes_nothing(events in any_events()) {
            let mut state = RunState::new();
            for event in &events {
                let before = state.clone();
                if next(&mut state, event).is_err() {
                    prop_assert_eq!(&state, &before);
                }
            }
        }

        #[test]
        fn a_final_phase_is_entered_only_by_the_verdict_and_keeps_it(events in any_events()) {
            let mut state = RunState::new();
            for event in &events {
                let earned = state.verdict();
                let was_final = state.phase.is_final();
                let fits = next(&mut state, event).is_ok();
                if fits && !was_final && state.phase.is_final() {
                    prop_assert_eq!(state.phase, earned);
                }
                if state.phase.is_final() {
                    prop_assert_eq!(state.phase, state.verdict());
                }
            }
        }

        #[test]
        fn the_first_cause_of_an_attempt_never_changes(events in any_events()) {
            let mut state = RunState::new();
            let mut firsts: BTreeMap<u32, Cause> = BTreeMap::new();
            for event in &events {
                if next(&mut state, event).is_err() {
                    continue;
                }
                if let Some(cause) = state.cause() {
                    let first = firsts.entry(state.attempt).or_insert_with(|| cause.clone());
                    prop_assert_eq!(&*first, cause);
                }
                for (attempt, first) in &firsts {
                    // An old one may be dropped, but no other takes its place.
                    let known = state.causes.first_of(*attempt);
                    prop_assert!(known.is_none_or(|known| known == first));
                }
                prop_assert!(state.causes.chain().len() <= Causes::MOST);
            }
        }

        #[test]
        fn nothing_of_the_bridge_comes_before_the_bootstrap_is_ok(events in any_events()) {
            let mut ok = false;
            for one in logged(&events) {
                match &one.event {
                    RunEvent::AttemptStarted { .. } => ok = false,
                    RunEvent::BootstrapOk => ok = true,
                    event => prop_assert!(ok || !is_of_bridge(event), "{event:?}"),
                }
            }
        }

        #[test]
        fn the_bootstrap_is_ok_only_with_every_step_done(events in any_events()) {
            let mut state = RunState::new();
            for event in &events {
                let _ = next(&mut state, event);
                if state.bootstrap_ok {
                    prop_assert!(!state.checklist.is_empty());
                    prop_assert!(state.checklist.iter().all(Step::is_done));
                }
            }
        }

        #[test]
        fn a_saved_prefix_and_the_rest_give_the_whole(events in any_events(), at in any::<u16>()) {
            let log = logged(&events);
            let (prefix, rest) = log.split_at(usize::from(at) % (log.len() + 1));
            let saved = serde_json::to_string(&replayed(RunState::new(), prefix)).unwrap();
            let resumed: RunState = serde_json::from_str(&saved).unwrap();
            prop_assert_eq!(replayed(resumed, rest), replayed(RunState::new(), &log));
        }

        #[test]
        fn an_event_survives_the_round_trip_through_its_stored_form(events in any_events()) {
            for one in logged(&events) {
                let stored = serde_json::to_string(&one).unwrap();
                prop_assert_eq!(serde_json::from_str::<Logged>(&stored).unwrap(), one);
            }
        }
    }

    #[test]
    fn an_illegal_event_is_refused_by_name_and_phase() {
        let mut state = after(&[RunEvent::Queued]);
        let refused = next(&mut state, &some_text()).unwrap_err();
        assert_eq!(refused.to_string(), "text cannot happen to a run that is queued");
    }

    #[test]
    fn an_answer_to_an_older_question_leaves_the_newer_one_open() {
        let ask = |request: &str| RunEvent::InputRequested {
            turn: 1,
            request: request.into(),
            question: Masked::ours("may I?"),
        };
        let answer = |request: &str| RunEvent::InputGiven { request: request.into() };
        let mut state = after(&[events_until_running(), vec![ask("q1"), ask("q2")]].concat());
        next(&mut state, &answer("q1")).unwrap();
        assert_eq!(state.request.as_ref().unwrap().request, "q2");
        next(&mut state, &answer("q2")).unwrap();
        assert_eq!(state.request, None);
    }

    #[test]
    fn a_run_that_is_over_takes_no_more_causes_even_while_its_sandbox_is_kept() {
        let enter = |phase| RunEvent::PhaseEntered { phase };
        let ending =
            [RunEvent::Kept { until_ms: 9 }, enter(Phase::Releasing), enter(Phase::Succeeded)];
        let mut state = after(&[events_until_running(), ending.to_vec()].concat());
        assert!(next(&mut state, &some_cause(CauseClass::Offline, 1)).is_err());
        let certificate = Certified { verified: true, left: Vec::new() };
        next(&mut state, &RunEvent::Released { certificate }).unwrap();
        assert_eq!((state.phase, state.kept_until_ms), (Phase::Succeeded, None));
    }
}
