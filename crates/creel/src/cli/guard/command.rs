//! Running the command: its signals, its terminal, its end.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use creel_core::failure::Code;
use creel_core::provider::process::{Attended, AttendedCommand, Attention, Ending};
use creel_core::provider::{ErrorClass, Limits, ProcessSpec, ProviderName, Spec};
use creel_core::scope::{Held, Request, TakeError};
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::app::App;
use crate::output::{Exit, Failure};
use crate::shutdown::{Asked, Shutdown};

use super::Post;

/// Runs the command to its end, and returns the exit code that passes through.
pub(super) async fn run(
    command: &[OsString],
    app: &App,
    post: &mut Post,
    shutdown: &mut Shutdown,
) -> Result<u8, Failure> {
    let (held, attended) = start(command, app, post).await?;
    let ending = wait(attended, app, shutdown).await;
    // What it left running is ended with the rest.
    post.held.push(held);
    Ok(match ending {
        Some(Ending::Code(code)) => u8::try_from(code).unwrap_or(Exit::Guard.code()),
        Some(Ending::Signal(signal)) => 128 + u8::try_from(signal).unwrap_or_default(),
        Some(Ending::LeaseExpired | Ending::InitDied) | None => 128 + 9,
    })
}

async fn start(command: &[OsString], app: &App, post: &Post) -> Result<(Held, Attended), Failure> {
    let shown = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let spec = ProcessSpec { command: shown, limits: Limits::default(), ..ProcessSpec::default() };
    let request = Request::new(ProviderName::Process, Spec::Process(spec));
    let attended = Arc::new(Mutex::new(None));
    let (place, process) = (Arc::clone(&attended), app.process());
    let command = AttendedCommand {
        command: command.to_vec(),
        environment: post.environment.clone(),
        directory: post.place.path().to_owned(),
        cover: post.cover.clone(),
    };
    let program = command.command[0].to_string_lossy().into_owned();
    let held = post.supervisor.create_with(request, |order| async move {
        let (id, handle) = process.attend(order, command).await?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(id)
    });
    let held = held.await.map_err(|error| match error {
        TakeError::Provider(error) if error.class == ErrorClass::Gone => {
            Failure::new(Code::Usage, Exit::Guard, format!("there is no program `{program}`"))
                .hint("check the words after --")
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

/// Waits for the end of the command. The first signal is passed on, or came from the terminal
/// to both; with the second one it is over.
async fn wait(mut attended: Attended, app: &App, shutdown: &mut Shutdown) -> Option<Ending> {
    let mut signals = 0;
    loop {
        tokio::select! {
            attention = attended.next() => match attention {
                Attention::Ended(ending) => return Some(ending),
                Attention::Lost => return None,
                Attention::Suspended => suspend(&attended),
                // The terminal sent it to the whole group: the command has it already.
                Attention::Signalled(_) => signals += 1,
            },
            asked = shutdown.next() => {
                signals += 1;
                attended.signal(number(asked));
            }
        }
        match signals {
            0 => {}
            1 => app.printer.say("asked the command to end; once more kills it"),
            _ => {
                app.printer.say("killing the command");
                attended.signal(Signal::KILL.as_raw());
                // Dropping it ends the whole tree.
                return Some(Ending::Signal(Signal::KILL.as_raw()));
            }
        }
    }
}

fn number(asked: Asked) -> i32 {
    match asked {
        Asked::Interrupt => Signal::INT.as_raw(),
        Asked::Terminate => Signal::TERM.as_raw(),
        Asked::HangUp => Signal::HUP.as_raw(),
    }
}

/// Stops the command and this process, so that the shell gets the terminal back; goes on when
/// the shell says so.
fn suspend(attended: &Attended) {
    attended.signal(Signal::STOP.as_raw());
    let me: Pid = getpid();
    // It returns when somebody continues this process.
    let _ = kill_process(me, Signal::STOP);
    attended.resume();
}
