//! The attendant: the process between a guard and the command it runs.
//!
//! A process tree of its own kind: the command keeps the terminal, the
//! environment and the directory of whoever called the guard. The attendant
//! leads the command's process group and adopts its orphans, so it sees what a
//! terminal sends to the group, reaps everything, and ends the whole tree when
//! the guard lets go or dies.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getpid, getppid, kill_process, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use crate::id::ResourceId;
use crate::os::{self, ProcessKey};

use super::channel::{AttendantOrder, AttendantReport, Channel, Heard, write_message};
use super::cover::Cover;
use super::group::GroupRecord;
use super::holder::{HolderError, ending_of};
use super::lease::LeaseWatch;
use super::{terminal, tree};

/// How long one try to end the tree may take before the next one.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long the guard may take to say what to do.
const START_PATIENCE: Duration = Duration::from_secs(15);

/// What the attendant is told when it starts.
#[derive(Debug)]
pub struct Attendance {
    /// Where the guard listens.
    pub socket: PathBuf,
    /// The resource that the tree is.
    pub resource: ResourceId,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs the command and answers for its tree until the guard lets go.
///
/// # Errors
///
/// Fails when the guard cannot be heard or the system refuses a step.
pub fn attend(attendance: &Attendance) -> Result<(), HolderError> {
    let guard = UnixStream::connect(&attendance.socket)?;
    let mut channel = Channel::over(guard);
    let order = match channel.receive(Some(START_PATIENCE))? {
        Heard::Message(AttendantOrder::Begin { cgroups, lease, lease_file, cover }) => {
            // First of all: it may not have a second thread yet.
            if let Some(Err(error)) = cover.as_ref().map(Cover::put_on) {
                let reason = format!("the guard's socket cannot be put in place: {error}");
                channel.send(&AttendantReport::Refused { reason, not_found: false })?;
                return Ok(());
            }
            Begin { cgroups, lease: LeaseWatch::start(lease_file, lease) }
        }
        Heard::Message(_) | Heard::Silence | Heard::End => return Err(HolderError::NoOrder),
    };
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT])?;
    for group in &order.cgroups {
        // A tree outside of its groups is still found by marker and descent.
        let _ = group.join();
    }
    let guard = getppid().and_then(group_of);
    let ended = run(attendance, &mut channel, order, signals, guard);
    // When the guard let go before the command ended.
    let _ = guard.map(terminal::hand_over);
    ended
}

struct Begin {
    cgroups: Vec<GroupRecord>,
    lease: LeaseWatch,
}

fn run(
    attendance: &Attendance,
    channel: &mut Channel,
    begin: Begin,
    signals: Signals,
    guard: Option<Pid>,
) -> Result<(), HolderError> {
    let Begin { cgroups, mut lease } = begin;
    let command = match spawn(&attendance.command) {
        Ok(command) => command,
        Err(error) => {
            let not_found = error.kind() == io::ErrorKind::NotFound;
            let reason = error.to_string();
            channel.send(&AttendantReport::Refused { reason, not_found })?;
            return Ok(());
        }
    };
    channel.send(&AttendantReport::Started { attendant: ProcessKey::of_this_process()? })?;
    let (reaps, signalled) = (channel.writer()?, channel.writer()?);
    let group = getpgrp();
    thread::Builder::new().spawn(move || reap(command, &reaps, guard))?;
    thread::Builder::new().spawn(move || tell_signals(signals, &signalled))?;
    loop {
        match channel.receive(Some(lease.period())) {
            Ok(Heard::Message(AttendantOrder::Signal { signal })) => signal_group(group, signal),
            Ok(Heard::Message(AttendantOrder::Resume)) => signal_group(group, SIGCONT),
            Ok(Heard::Silence) if !lease.has_expired() => {}
            // The guard let go or died, or nobody has renewed the lease.
            Ok(Heard::Message(AttendantOrder::Begin { .. }) | Heard::Silence | Heard::End)
            | Err(_) => break,
        }
    }
    while tree::end(&attendance.resource, &cgroups, Instant::now() + END_PATIENCE).is_err() {}
    Ok(())
}

fn spawn(command: &[OsString]) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let child = Command::new(program).args(arguments).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the command has no process id"))
}

/// Reaps every child, and tells the guard when the command is among them; its group gets the
/// terminal back first, because it may write to it.
fn reap(command: Pid, guard: &UnixStream, group: Option<Pid>) {
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if pid == command
            && let Some(ending) = ending_of(status)
        {
            let _ = group.map(terminal::hand_over);
            // A guard that is gone needs no telling: the main thread ends the tree.
            let _ = write_message(guard, &AttendantReport::Ended(ending));
        }
    }
}

/// Tells the guard what the terminal, or whoever signals the whole group, sent to it.
fn tell_signals(mut signals: Signals, guard: &UnixStream) {
    for signal in signals.forever() {
        let report = match signal {
            SIGCONT => continue,
            SIGTSTP => AttendantReport::Suspended,
            signal => AttendantReport::Signalled { signal },
        };
        if write_message(guard, &report).is_err() {
            return;
        }
    }
}

/// Returns the group of a process, as far as this process can tell: those of the kernel, and
/// those of other namespaces, have none.
fn group_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(os::process_stat(pid.as_raw_pid()).ok()?.group)
}

/// Sends a signal to every process of the group but this one.
fn signal_group(group: Pid, signal: i32) {
    let Some(signal) = Signal::from_named_raw(signal) else { return };
    let me = getpid();
    for pid in os::all_pids().unwrap_or_default().into_iter().filter_map(Pid::from_raw) {
        if pid != me && group_of(pid) == Some(group) {
            // Whoever ended meanwhile needs none.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Starts an attendant for a tree.
pub(super) fn start(
    program: &super::HolderProgram,
    attendance: &Attendance,
    environment: &super::attended::CommandEnvironment,
) -> io::Result<std::process::Child> {
    let mut command = Command::new(&program.program);
    command
        .args(&program.args)
        .arg(ATTEND)
        .arg(&attendance.socket)
        .arg(attendance.resource.to_string())
        .args(&attendance.command)
        .arg0("creel")
        // A group of its own, so that nothing meant for the guard's group hits the command, and
        // the other way round.
        .process_group(0);
    for name in &environment.removed {
        command.env_remove(name);
    }
    command.envs(environment.set.iter().cloned());
    command.env(super::RESOURCE_VARIABLE, attendance.resource.to_string());
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit()).spawn()
}

/// The word that makes a holder an attendant.
const ATTEND: &str = "attend";

impl Attendance {
    /// Reads the arguments after those of the holder program; `None` for an ordinary holder.
    pub fn of_arguments(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        if arguments.next()? != ATTEND {
            return None;
        }
        let socket = PathBuf::from(arguments.next()?);
        let resource = arguments.next()?.to_str()?.parse().ok()?;
        Some(Self { socket, resource, command: arguments.collect() })
    }
}
