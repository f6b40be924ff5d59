//! `exec`: one command, to its end or its limit.
//!
//! ```text
//! request ──> exec ──> command (a process group of its own, in exec's session)
//!    frames <──┘ └──> all that the command leaves behind becomes a child of exec
//! ```
//!
//! # What ends with the command
//!
//! - A command that ends by itself ends the rest of its session: its background processes are
//!   killed. A process that has created its own session, as daemons do, lives on. The command's
//!   streams have no reader any more, so a daemon that still writes to them is ended by `SIGPIPE`,
//!   unless its output was redirected when it was started.
//! - A command that is killed takes everything below it along, including daemons. It is killed at
//!   its limit, for its silence, because the caller hung up or no longer reads, or because `exec`
//!   was asked to end.
//! - A process that asks `exec` to end also asks the command itself, as a holder does with
//!   everything below it. So `exec` forwards no signal: it gives the command a few seconds, and
//!   then kills it.
//! - A bridge, and everything below it, is never touched: see [`super::processes`].
//!
//! `exec` itself holds nothing that outlives it. If it is killed with -9, the command becomes a
//! child of the holder and ends with the sandbox.

mod caller;
mod command;
mod outbox;
mod request;
mod running;

use std::process::ExitCode;
use std::time::Duration;

use creel_bridge::exec::ExecEvent;
use rustix::process::{getpid, set_child_subreaper, setsid};

use super::arguments::Arguments;
use super::error::BridgeError;
use super::signals::Signals;
use caller::Caller;
use outbox::Outbox;
use running::RunningCommand;

/// How long the caller may read nothing before it counts as gone.
const DELIVERY_PATIENCE: Duration = Duration::from_secs(60);

/// Runs one command. The last frame carries the result.
///
/// `--order FILE` reads the request from a file, and removes it, instead of the first line of
/// standard input. `--while-connected` kills the command when standard input ends. `--while-file
/// FILE --while-ms N` kills it when the file is gone, or did not change for that long. `--after
/// FILE` waits until no other `exec` with this file runs.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let mut outbox = Outbox::default();
    let ended = supervise(arguments, &mut outbox);
    outbox.push(&match &ended {
        Ok(event) => event.clone(),
        Err(failure) => ExecEvent::NotStarted { reason: failure.to_string() },
    });
    outbox.deliver(DELIVERY_PATIENCE)?;
    ended.map(|_| ExitCode::SUCCESS)
}

/// Reads the request, runs the command to its end and returns the result.
///
/// Fails only before the command runs.
fn supervise(arguments: &Arguments, outbox: &mut Outbox) -> Result<ExecEvent, BridgeError> {
    let request = match arguments.path("order") {
        Some(file) => request::read_file(&file)?,
        None => request::read_input()?,
    };
    let mut caller = Caller::new(arguments.has("while-connected"));
    if let Some(file) = arguments.path("while-file") {
        caller.check_file(file, arguments.needed_duration("while-ms")?);
    }
    // Fails only if this process already leads a session or a group, which then serves as well.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))
        .map_err(BridgeError::of("adopt what the command leaves"))?;
    let signals = Signals::catch()?;
    // The turn is held until nothing of this command is left.
    let _turn = arguments.path("after").map(|file| caller.wait_for_turn(&file)).transpose()?;
    let input = request::input_of(&request)?;
    let child = match command::start(&request) {
        Ok(child) => child,
        Err(reason) => return Ok(ExecEvent::NotStarted { reason }),
    };
    outbox.push(&ExecEvent::Started { pid: child.id() });
    let ending = RunningCommand::new(&request, input, child, signals).run(&mut caller, outbox);
    Ok(ExecEvent::Ended(ending))
}
