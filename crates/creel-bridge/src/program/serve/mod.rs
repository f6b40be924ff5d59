//! `serve`: the bridge, which owns the runtime and outlives whoever started it.
//!
//! ```text
//! serve ──starts──> bridge (a session of its own) ──> exec ──> program of the turn
//!   └── one frame, when it stands     │    ▲
//!                                   spool  commands/, questions/
//! ```
//!
//! Where a bridge serves already, that one is meant: to start it twice is no harm.
//!
//! # What a crash leaves
//!
//! Killed at any instant, a bridge leaves its spool with whole events and perhaps half
//! a line, commands that were not taken, and nothing that runs: the program of the turn
//! dies because its `exec` is hung up on. The next bridge cuts the half line off, ends
//! the turn as killed, and takes what waits.

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
use creel_bridge::serve::{Order, Sign, Told};
use rustix::process::{getpid, set_child_subreaper, setsid};

use super::arguments::Arguments;
use super::directory::Directory;
use super::failure::Failure;
use super::first_line;
use super::processes::BRIDGE_WORD;
use super::signals::Signals;
use super::spawn::this_program;
use super::spool::Reader;
use bridge::Bridge;

/// Starts a bridge, and returns when it stands; its sign is printed.
pub(crate) fn run(_: &Arguments) -> Result<ExitCode, Failure> {
    let line = first_line::read()?;
    let order: Order = first_line::parse(&line)?;
    let directory = Directory::new(&order.directory);
    directory.make()?;
    let sign = if directory.is_served() { sign_of(&directory)? } else { start(&directory, line)? };
    let mut output = io::stdout();
    let printed = output.write_all(&sign).and_then(|()| output.flush());
    printed.map_err(Failure::of("print the sign"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the sign of the bridge that serves already.
fn sign_of(directory: &Directory) -> Result<Vec<u8>, Failure> {
    let mut reader = Reader::new(&directory.spool(), 1);
    reader.read(|_| Ok(())).map_err(Failure::of("read the spool"))?;
    alive(reader.newest())
}

fn alive(newest: u64) -> Result<Vec<u8>, Failure> {
    frame::encode(0, &Told::Sign(Sign::Alive { newest }))
        .map_err(|error| Failure::of("write a frame")(io::Error::from(error)))
}

/// Starts the bridge proper, hands the order over, and waits for its sign.
fn start(directory: &Directory, mut line: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let mut options = OpenOptions::new();
    let log = options.create(true).append(true).mode(0o600).open(directory.log());
    let mut bridge = this_program([BRIDGE_WORD])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log.map_err(Failure::of("open the bridge's log"))?)
        .spawn()
        .map_err(Failure::of("start the bridge"))?;
    line.push(b'\n');
    let mut sign = Vec::new();
    if let (Some(mut input), Some(output)) = (bridge.stdin.take(), bridge.stdout.take()) {
        // One that does not read has ended, which shows below.
        let _ = input.write_all(&line);
        drop(input);
        let read = BufReader::new(output).read_until(b'\n', &mut sign);
        read.map_err(Failure::of("hear the bridge"))?;
    }
    if frame::decode::<Told>(&sign).is_none() {
        // Somebody else may have started one in the same instant.
        if directory.is_served() {
            return sign_of(directory);
        }
        return Err(Failure::Refused(format!(
            "the bridge did not come up: {}",
            last_word(directory)
        )));
    }
    Ok(sign)
}

/// Returns the last line of the bridge's log.
fn last_word(directory: &Directory) -> String {
    let log = fs::read(directory.log()).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    log.lines().last().unwrap_or("it said nothing").to_owned()
}

/// Is the bridge: reads the order, says that it stands, and serves until its end.
pub(crate) fn run_detached(_: &Arguments) -> Result<ExitCode, Failure> {
    setsid().map_err(Failure::of("make a session"))?;
    set_child_subreaper(Some(getpid())).map_err(Failure::of("adopt orphans"))?;
    let order: Order = first_line::parse(&first_line::read()?)?;
    let directory = Directory::new(&order.directory);
    let lock = directory.lock().map_err(Failure::of("take the lock"))?;
    let Some(_lock) = lock else {
        return Err(Failure::Refused("another bridge serves here".to_owned()));
    };
    let signals = Signals::catch()?;
    let bridge = Bridge::open(order, directory, signals)?;
    let mut output = io::stdout();
    // Whoever started it may be gone; it stands all the same.
    let _ = output.write_all(&alive(bridge.newest())?).and_then(|()| output.flush());
    bridge.serve()?;
    Ok(ExitCode::SUCCESS)
}
