//! Runs the command: its signals, its terminal, its end.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use creel_core::scope::{AcquireError, Held, Request};
use creel_model::failure::Code;
use creel_model::provider::{ErrorClass, Limits, ProcessSpec, Spec};
use creel_process::{Attended, AttendedCommand, CommandEvent, ProcessEnding};
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::app::App;
use crate::output::{Exit, Failure};
use crate::shutdown::{Shutdown, ShutdownSignal};

use super::GuardSetup;

/// Runs the command to its end, and returns its exit code.
pub(super) async fn run(
    command: &[OsString],
    app: &App,
    setup: &mut GuardSetup,
    shutdown: &mut Shutdown,
) -> Result<u8, Failure> {
    let (held, attended) = start(command, app, setup).await?;
    let ending = wait(attended, app, shutdown).await;
    // Processes that it left running are ended with the rest.
    setup.held.push(held);
    Ok(match ending {
        Some(ProcessEnding::Code(code)) => u8::try_from(code).unwrap_or(Exit::Guard.code()),
        Some(ProcessEnding::Signal(signal)) => 128 + u8::try_from(signal).unwrap_or_default(),
        Some(ProcessEnding::LeaseExpired | ProcessEnding::InitDied) | None => 128 + 9,
    })
}

async fn start(
    command: &[OsString],
    app: &App,
    setup: &GuardSetup,
) -> Result<(Held, Attended), Failure> {
    let shown = command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let spec = ProcessSpec { command: shown, limits: Limits::default(), ..ProcessSpec::default() };
    let request = Request::new(creel_process::NAME, Spec::Process(spec));
    let attended = Arc::new(Mutex::new(None));
    let (place, process) = (Arc::clone(&attended), app.process());
    let command = AttendedCommand {
        command: command.to_vec(),
        environment: setup.environment.clone(),
        directory: setup.place.path().to_owned(),
        cover: setup.cover.clone(),
    };
    let program = command.command[0].to_string_lossy().into_owned();
    let held = setup.supervisor.create_with(request, |create_request| async move {
        let (id, handle) = process.attend(create_request, command).await?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(id)
    });
    let held = held.await.map_err(|error| match error {
        AcquireError::Provider(error) if error.class == ErrorClass::Gone => {
            Failure::new(Code::Usage, Exit::Guard, format!("there is no program `{program}`"))
                .hint("check the command after --")
        }
        other => other.into(),
    })?;
    let attended = attended.lock().unwrap_or_else(PoisonError::into_inner).take();
    let attended = attended.ok_or_else(|| {
        let lost = std::io::Error::other("the answer of its attendant was lost");
        Failure::internal("the command cannot be watched", &lost)
    })?;
    Ok((held, attended))
}

/// Waits for the end of the command. The first signal is forwarded, unless the terminal has sent it
/// to both. The second one kills the command.
async fn wait(mut attended: Attended, app: &App, shutdown: &mut Shutdown) -> Option<ProcessEnding> {
    let mut signals = 0;
    loop {
        tokio::select! {
            attention = attended.next() => match attention {
                CommandEvent::Ended(ending) => return Some(ending),
                CommandEvent::Lost => return None,
                CommandEvent::Suspended => suspend(&attended),
                // The terminal sent the signal to the whole group, so the command has received it
                // already.
                CommandEvent::Signalled(_) => signals += 1,
            },
            signal = shutdown.next() => {
                signals += 1;
                attended.signal(number(signal));
            }
        }
        match signals {
            0 => {}
            1 => app.printer.say("asked the command to end; once more kills it"),
            _ => {
                app.printer.say("killing the command");
                attended.signal(Signal::KILL.as_raw());
                // Dropping `attended` ends the whole process tree.
                return Some(ProcessEnding::Signal(Signal::KILL.as_raw()));
            }
        }
    }
}

fn number(signal: ShutdownSignal) -> i32 {
    match signal {
        ShutdownSignal::Interrupt => Signal::INT.as_raw(),
        ShutdownSignal::Terminate => Signal::TERM.as_raw(),
        ShutdownSignal::HangUp => Signal::HUP.as_raw(),
    }
}

/// Stops the command and this process, so that the shell gets the terminal back. Continues when the
/// shell resumes this process.
fn suspend(attended: &Attended) {
    attended.signal(Signal::STOP.as_raw());
    let me: Pid = getpid();
    // Returns when this process is continued.
    let _ = kill_process(me, Signal::STOP);
    attended.resume();
}
