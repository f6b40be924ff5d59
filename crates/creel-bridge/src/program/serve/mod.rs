//! `serve`: the bridge, which owns the runtime and outlives the process that started it.
//!
//! ```text
//! serve ──starts──> bridge (a session of its own) ──> exec ──> program of the turn
//!   └── one frame, when it stands     │    ▲
//!                                   spool  commands/, questions/
//! ```
//!
//! Starting a bridge where one already serves is harmless: the caller gets the existing one.
//!
//! # What a crash leaves
//!
//! A bridge that is killed at any instant leaves a spool with complete events and perhaps half a
//! line, and commands that were not taken. Nothing keeps running: the program of the turn dies
//! because its `exec` loses its caller. The next bridge cuts off the half line, ends the turn as
//! killed, and takes the waiting commands.

mod bridge;
mod commands;
mod questions;
mod text;
mod turn;

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{ExitCode, Stdio};

use creel_bridge::frame;
use creel_bridge::serve::{ServeRequest, Sign, TailItem};
use rustix::process::{getpid, set_child_subreaper, setsid};

use super::arguments::Arguments;
use super::directory::BridgeDirectory;
use super::error::BridgeError;
use super::first_line;
use super::processes::BRIDGE_ARG;
use super::signals::Signals;
use super::spawn::this_program;
use super::spool::SpoolReader;
use bridge::Bridge;

/// Starts a bridge, waits until it serves, and prints its sign.
pub(crate) fn run(_: &Arguments) -> Result<ExitCode, BridgeError> {
    let line = first_line::read()?;
    let request: ServeRequest = first_line::parse(&line)?;
    let directory = BridgeDirectory::new(&request.directory);
    directory.create()?;
    let sign = if directory.is_served() { sign_of(&directory)? } else { start(&directory, line)? };
    let mut output = io::stdout();
    let printed = output.write_all(&sign).and_then(|()| output.flush());
    printed.map_err(BridgeError::of("print the sign"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the sign of the bridge that already serves.
fn sign_of(directory: &BridgeDirectory) -> Result<Vec<u8>, BridgeError> {
    let mut reader = SpoolReader::new(&directory.spool(), 1);
    reader.read(|_| Ok(())).map_err(BridgeError::of("read the spool"))?;
    alive(reader.newest())
}

fn alive(newest: u64) -> Result<Vec<u8>, BridgeError> {
    frame::encode(0, &TailItem::Sign(Sign::Alive { newest }))
        .map_err(|error| BridgeError::of("write a frame")(io::Error::from(error)))
}

/// Starts the detached bridge, passes the request on, and waits for its sign.
fn start(directory: &BridgeDirectory, mut line: Vec<u8>) -> Result<Vec<u8>, BridgeError> {
    let mut options = OpenOptions::new();
    let log = options.create(true).append(true).mode(0o600).open(directory.log());
    let mut bridge = this_program([BRIDGE_ARG])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log.map_err(BridgeError::of("open the bridge's log"))?)
        .spawn()
        .map_err(BridgeError::of("start the bridge"))?;
    line.push(b'\n');
    let mut sign = Vec::new();
    if let (Some(mut input), Some(output)) = (bridge.stdin.take(), bridge.stdout.take()) {
        // If the write fails, the bridge has ended, which is detected below.
        let _ = input.write_all(&line);
        drop(input);
        let read = BufReader::new(output).read_until(b'\n', &mut sign);
        read.map_err(BridgeError::of("receive from the bridge"))?;
    }
    if frame::decode::<TailItem>(&sign).is_none() {
        // Another process may have started a bridge at the same instant.
        if directory.is_served() {
            return sign_of(directory);
        }
        return Err(BridgeError::Refused(format!(
            "the bridge did not come up: {}",
            last_log_line(directory)
        )));
    }
    Ok(sign)
}

/// Returns the last line of the bridge's log.
fn last_log_line(directory: &BridgeDirectory) -> String {
    let log = fs::read(directory.log()).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    log.lines().last().unwrap_or("it said nothing").to_owned()
}

/// Runs as the bridge: reads the request, reports that it serves, and serves until its end.
pub(crate) fn run_detached(_: &Arguments) -> Result<ExitCode, BridgeError> {
    setsid().map_err(BridgeError::of("make a session"))?;
    set_child_subreaper(Some(getpid())).map_err(BridgeError::of("adopt orphans"))?;
    let request: ServeRequest = first_line::parse(&first_line::read()?)?;
    let directory = BridgeDirectory::new(&request.directory);
    let lock = directory.lock().map_err(BridgeError::of("take the lock"))?;
    let Some(_lock) = lock else {
        return Err(BridgeError::Refused("another bridge serves here".to_owned()));
    };
    let signals = Signals::catch()?;
    let bridge = Bridge::open(request, directory, signals)?;
    let mut output = io::stdout();
    // The process that started the bridge may be gone. The bridge serves all the same.
    let _ = output.write_all(&alive(bridge.newest())?).and_then(|()| output.flush());
    bridge.serve()?;
    Ok(ExitCode::SUCCESS)
}
