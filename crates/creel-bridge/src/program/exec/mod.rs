//! `exec`: one command, to its end or its limit.
//!
//! ```text
//! order ──> exec ──> command (a process group of its own, in exec's session)
//!   frames <──┘ └──> all that the command leaves behind becomes a child of exec
//! ```
//!
//! # What ends with the command
//!
//! - A command that ends by itself takes along what is left of its session: what
//!   it put into the background is killed. What has made a session of its own, as
//!   daemons do, lives on; but nobody reads the command's streams any more, so a
//!   daemon that still writes to them is ended by `SIGPIPE`, unless its output was
//!   sent elsewhere when it was started.
//! - A command that is killed (at its limit, for its silence, because whoever
//!   ordered it hung up or does not listen any more, or because `exec` was asked to
//!   end) takes along everything below it, daemons too.
//! - Whoever asks `exec` to end asks the command itself too, as a holder does with all
//!   below it. So `exec` passes nothing on: it gives the command a few seconds, and kills
//!   it then.
//! - A bridge, and what is below it, is never touched: see [`super::processes`].
//!
//! `exec` itself holds nothing that outlives it; when it is killed with -9, the
//! command becomes a child of the holder and ends with the sandbox.

mod attendance;
mod caller;
mod command;
mod order;
mod outbox;

use std::process::ExitCode;
use std::time::Duration;

use creel_bridge::exec::Heard;
use rustix::process::{getpid, set_child_subreaper, setsid};

use super::arguments::Arguments;
use super::failure::Failure;
use super::signals::Signals;
use attendance::Attendance;
use caller::Caller;
use outbox::Outbox;

/// How long whoever ordered the command may take nothing before it is given up.
const DELIVERY_PATIENCE: Duration = Duration::from_secs(60);

/// Runs one command; the last frame says how it went.
///
/// `--order FILE` reads the order from a file, and removes it, instead of the first line of the
/// standard input. `--while-connected` kills the command when the standard input ends;
/// `--while-file FILE --while-ms N` kills it when the file is gone, or did not change for so long.
/// `--after FILE` waits until no other `exec` with this file runs any more.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut outbox = Outbox::default();
    let ended = attend(arguments, &mut outbox);
    outbox.push(&match &ended {
        Ok(heard) => heard.clone(),
        Err(failure) => Heard::NotStarted { reason: failure.to_string() },
    });
    outbox.deliver(DELIVERY_PATIENCE)?;
    ended.map(|_| ExitCode::SUCCESS)
}

/// Reads the order, starts the command and stays with it; returns how it went.
///
/// It fails only before the command runs.
fn attend(arguments: &Arguments, outbox: &mut Outbox) -> Result<Heard, Failure> {
    let order = match arguments.path("order") {
        Some(file) => order::read_file(&file)?,
        None => order::read_input()?,
    };
    let mut caller = Caller::new(arguments.has("while-connected"));
    if let Some(file) = arguments.path("while-file") {
        caller.give_signs_by(file, arguments.needed_duration("while-ms")?);
    }
    // It fails only for one that leads a session or a group already, and then that one will do.
    let _ = setsid();
    set_child_subreaper(Some(getpid())).map_err(Failure::of("adopt what the command leaves"))?;
    let signals = Signals::catch()?;
    // Held until nothing of this command is left.
    let _turn = arguments.path("after").map(|file| caller.wait_for_turn(&file)).transpose()?;
    let input = order::input_of(&order)?;
    let child = match command::start(&order) {
        Ok(child) => child,
        Err(reason) => return Ok(Heard::NotStarted { reason }),
    };
    outbox.push(&Heard::Started { pid: child.id() });
    let ending = Attendance::new(&order, input, child, signals).run(&mut caller, outbox);
    Ok(Heard::Ended(ending))
}
