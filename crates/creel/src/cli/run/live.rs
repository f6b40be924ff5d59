//! Shows a run while it is driven: the checklist, the agent's output, the outcome.
//!
//! The agent's standard output is data and goes to stdout; everything else goes to stderr.

use std::io::Write;

use creel_ledger::event_log::Journal;
use creel_model::id::RunId;
use creel_model::names;
use creel_model::run::{
    Connection, Logged, Phase, RunEvent, RunState, Step, StepStatus, Stream, TurnOutcome,
};
use creel_model::task;
use jiff::Timestamp;
use owo_colors::OwoColorize;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::output::Printer;
use crate::output::progress::{WaitLine, above_the_bar};

/// Shows the events of a run as they are recorded.
pub(super) struct LiveOutput {
    printing: JoinHandle<()>,
}

impl LiveOutput {
    pub(super) fn show(app: &App, journal: &Journal) -> Self {
        let printer = app.printer.clone();
        printer.say(&format!("run {}", journal.run().cyan()));
        let mut events = journal.subscribe();
        let waits = WaitLine::new(&printer);
        let printing = task::background(async move {
            loop {
                match events.recv().await {
                    Ok(logged) => {
                        wait_for(&waits, &logged.event);
                        show(&printer, &logged);
                    }
                    Err(RecvError::Lagged(missed)) => {
                        printer.say(&format!("… {missed} events not shown; creel events has them"));
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        });
        Self { printing }
    }

    /// Waits until everything is shown.
    pub(super) async fn finish(self) {
        // It ends when the journal is dropped; a panic of it was reported already.
        let _ = self.printing.await;
    }
}

/// Shows what people wait for after an event. While the agent works, its own output is shown.
fn wait_for(waits: &WaitLine, event: &RunEvent) {
    match event {
        RunEvent::PhaseEntered { phase: Phase::Provisioning } => waits.show("making the sandbox"),
        RunEvent::PhaseEntered { phase: Phase::Releasing } => waits.show("releasing everything"),
        RunEvent::StepStarted { step } => waits.show(step.step.as_str()),
        RunEvent::StepEnded { .. } | RunEvent::PhaseEntered { .. } | RunEvent::Released { .. } => {
            waits.clear();
        }
        _ => {}
    }
}

fn show(printer: &Printer, logged: &Logged) {
    match &logged.event {
        RunEvent::AttemptStarted { attempt, .. } if *attempt > 1 => {
            printer.say(&format!("attempt {attempt}"));
        }
        RunEvent::PhaseEntered { phase } if !phase.is_final() => {
            printer.say(&format!("{}", phase.bold()));
        }
        RunEvent::StepEnded { step } => printer.say(&step_line(step)),
        RunEvent::TurnStarted { turn, .. } => printer.say(&format!("  turn {turn}")),
        RunEvent::Text { stream, text, .. } => say_text(printer, *stream, text.as_str()),
        RunEvent::TurnEnded { turn, how } => printer.say(&format!("  turn {turn} {}", ending(how))),
        RunEvent::InputRequested { question, .. } => {
            printer.say(&format!("{} {question}", "the agent asks:".yellow()));
            printer.say("answer with: creel message last \"…\"");
        }
        RunEvent::ConnectionChanged {
            connection: Connection::Reconnecting | Connection::Offline,
        } => {
            printer.say("  the connection to the sandbox is lost; trying again");
        }
        RunEvent::TeardownEnded { name, found } => {
            printer.say(&format!("  teardown {name}: {found}"))
        }
        RunEvent::CauseLatched { cause } => {
            printer.say(&format!("{} {}: {}", "cause".red(), cause.class, cause.message));
        }
        _ => {}
    }
}

fn step_line(step: &Step) -> String {
    let found = step.found.as_ref().map(ToString::to_string).unwrap_or_default();
    let seconds = step.seconds.unwrap_or_default();
    let mark = match step.status {
        StepStatus::Passed => format!("{}", "ok".green()),
        StepStatus::Tolerated => format!("{}", "optional, failed".yellow()),
        StepStatus::Failed => format!("{}", "failed".red()),
        StepStatus::Running => "…".to_owned(),
    };
    format!("  {:<24} {mark}  {found} ({seconds:.1}s)", step.step)
}

fn say_text(printer: &Printer, stream: Stream, text: &str) {
    match stream {
        // With --json there is only one line at the end.
        Stream::Output if !printer.json => above_the_bar(|| {
            let mut out = anstream::stdout().lock();
            // A closed pipe is not an error of ours.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }),
        Stream::Output => {}
        Stream::Error => printer.say(text.trim_end_matches('\n')),
    }
}

fn ending(how: &TurnOutcome) -> String {
    match how {
        TurnOutcome::Exited { code: 0 } => "done".to_owned(),
        TurnOutcome::Exited { code } => format!("ended with code {code}"),
        TurnOutcome::Killed { signal } => format!("was ended by signal {signal}"),
        TurnOutcome::TimedOut => "was stopped at its limit".to_owned(),
        TurnOutcome::Silent => "was stopped because it wrote nothing".to_owned(),
        TurnOutcome::Cancelled => "was cancelled".to_owned(),
        TurnOutcome::NotStarted { reason } => format!("could not start: {reason}"),
    }
}

/// Prints how a run ended, why, what to do, and what is left.
pub(super) fn summarise(app: &App, run: RunId, state: &RunState, hints: &[String]) {
    let printer = &app.printer;
    let phase = match state.phase {
        Phase::Succeeded => format!("{}", state.phase.green()),
        _ => format!("{}", state.phase.red()),
    };
    printer.say(&format!("{phase} {run}"));
    if let Some(cause) = state.cause() {
        printer.say(&format!("  why:  {}: {}", cause.class, cause.message));
        printer.say(&format!("  next: {}", cause.action()));
    }
    if let Some(until_ms) = state.kept_until_ms {
        let until = Timestamp::from_millisecond(until_ms).map(|at| at.to_string());
        printer.say(&format!("  kept: the sandbox exists until {}", until.unwrap_or_default()));
        hints.iter().for_each(|hint| printer.say(&format!("        {hint}")));
    }
    match &state.certificate {
        Some(certificate) if certificate.verified => {
            printer.say("  left: nothing; everything it created is verified gone");
        }
        Some(certificate) => {
            for entry in &certificate.left {
                let name = names::visible(entry.name.as_str());
                printer.say(&format!("  left: {} {} {name}", entry.provider, entry.kind));
            }
            printer.say("  next: creel reconcile tries again");
        }
        None => {}
    }
}
