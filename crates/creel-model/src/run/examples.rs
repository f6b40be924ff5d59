//! Events and steps for tests.

use creel_bridge::event::Stream;
use creel_sanitise::{Diagnostic, Masked};

use super::{AttemptFrom, Phase, RunEvent, Step, StepStatus};

/// Returns a step of a bootstrap.
pub fn some_step(name: &str, status: StepStatus) -> Step {
    Step {
        step: name.into(),
        status,
        expected: Diagnostic::ours("that it is there"),
        found: Some(Diagnostic::ours("it is there")),
        exit_code: Some(0),
        seconds: Some(0.5),
        tries: 1,
        inactivity_limit: None,
        hard_limit: 60.0,
        tail: None,
    }
}

/// Returns an event with output of the agent.
pub fn some_text() -> RunEvent {
    RunEvent::Text { turn: 1, stream: Stream::Output, text: Masked::ours("hello") }
}

/// Returns the events of a successful run up to its first output.
pub fn events_until_running() -> Vec<RunEvent> {
    let enter = |phase| RunEvent::PhaseEntered { phase };
    vec![
        RunEvent::Queued,
        RunEvent::AttemptStarted { attempt: 1, from: AttemptFrom::Scratch },
        enter(Phase::Provisioning),
        enter(Phase::Bootstrapping),
        RunEvent::StepStarted { step: some_step("reachable", StepStatus::Running) },
        RunEvent::StepEnded { step: some_step("reachable", StepStatus::Passed) },
        RunEvent::BootstrapOk,
        enter(Phase::Ready),
        RunEvent::BridgeStarted { version: "1".into() },
        enter(Phase::Running),
        RunEvent::TurnStarted { turn: 1, attempt: 1, model: None },
    ]
}
