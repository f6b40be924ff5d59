//! Renders events of a run as text for people.

use creel_model::run::{Ability, AttemptFrom, RunEvent, Step, TurnOutcome};
use creel_sanitise::Masked;

/// Returns an event as one line; agent output is kept as it is.
pub(crate) fn event_text(event: &RunEvent) -> String {
    match event {
        RunEvent::Queued => "queued".to_owned(),
        RunEvent::AttemptStarted { attempt, from: AttemptFrom::Scratch } => {
            format!("attempt {attempt} began")
        }
        RunEvent::AttemptStarted { attempt, from: AttemptFrom::Bootstrap } => {
            format!("attempt {attempt} began, in the sandbox that was kept")
        }
        RunEvent::PhaseEntered { phase } => format!("phase {phase}"),
        RunEvent::ConnectionChanged { connection } => format!("connection {}", connection.name()),
        RunEvent::ConditionChanged { condition } => {
            let (about, status) = (condition.about, condition.status);
            format!("{about:?} is {status:?}: {}", condition.message)
        }
        RunEvent::EventsLost { first, last, .. } => {
            format!("events {first} to {last} are lost: the event log was damaged or deleted")
        }
        RunEvent::StepStarted { step } => format!("step {}: began", step.step),
        RunEvent::StepEnded { step } => format!("step {}: {}", step.step, ending_of(step)),
        RunEvent::CapabilitiesProbed { capabilities } => {
            let listed =
                capabilities.iter().map(|(name, ability)| able(&format!("{name:?}"), ability));
            format!("capabilities: {}", listed.collect::<Vec<_>>().join(", "))
        }
        RunEvent::CapabilityChanged { capability, ability } => {
            format!("{} ({})", able(&format!("{capability:?}"), ability), ability.evidence)
        }
        RunEvent::BootstrapOk => "every step is done".to_owned(),
        RunEvent::BridgeStarted { version } => format!("bridge {version} started"),
        RunEvent::RuntimeReady { version } => {
            format!("runtime {} is ready", version.as_ref().map_or("", Masked::as_str))
                .replace("  ", " ")
        }
        RunEvent::TurnStarted { turn, model, .. } => match model {
            Some(model) => format!("turn {turn} began with {model}"),
            None => format!("turn {turn} began"),
        },
        RunEvent::Text { text, .. } => plain(text.as_str()),
        RunEvent::TextDropped { pieces, bytes, .. } => {
            format!("{bytes} bytes of output in {pieces} pieces were dropped: the log is full")
        }
        RunEvent::InputRequested { request, question, .. } => {
            format!("asks ({request}): {}", plain(question.as_str()))
        }
        RunEvent::InputGiven { request } => format!("was answered ({request})"),
        RunEvent::MessageTaken { key } => format!("took {key}"),
        RunEvent::TurnEnded { turn, how } => format!("turn {turn} {}", outcome(how)),
        RunEvent::CauseLatched { cause } => format!("{}: {}", cause.class, cause.message),
        RunEvent::CancelRequested => "a user requested cancellation".to_owned(),
        RunEvent::TeardownEnded { name, found } => format!("teardown {name}: {found}"),
        RunEvent::Kept { until_ms } => {
            let until = jiff::Timestamp::from_millisecond(*until_ms).unwrap_or_default();
            format!("its sandbox is kept until {until}")
        }
        RunEvent::Released { certificate } if certificate.verified => {
            "everything was released and verified gone".to_owned()
        }
        RunEvent::Released { certificate } => {
            format!("released, but {} left or not verified", certificate.left.len())
        }
    }
}

fn ending_of(step: &Step) -> String {
    let status = format!("{:?}", step.status).to_lowercase();
    match &step.found {
        Some(found) => format!("{status}, {found}"),
        None => status,
    }
}

fn able(name: &str, ability: &Ability) -> String {
    let not = if ability.available { "" } else { "no " };
    format!("{not}{}", name.to_lowercase())
}

fn outcome(how: &TurnOutcome) -> String {
    match how {
        TurnOutcome::Exited { code: 0 } => "ended".to_owned(),
        TurnOutcome::Exited { code } => format!("ended with exit code {code}"),
        TurnOutcome::Killed { signal } => format!("was ended by signal {signal}"),
        TurnOutcome::TimedOut => "was stopped at its limit".to_owned(),
        TurnOutcome::Silent => "was stopped: it wrote nothing for too long".to_owned(),
        TurnOutcome::Cancelled => "was cancelled".to_owned(),
        TurnOutcome::NotStarted { reason } => format!("could not be started: {reason}"),
    }
}

/// Returns agent output fit for a terminal: an agent must not move the user's cursor.
fn plain(text: &str) -> String {
    let visible =
        |one: char| if one.is_control() && one != '\n' && one != '\t' { ' ' } else { one };
    text.trim_end().chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\tc\n\n"), "a [2Jb\tc");
    }
}
