//! The attendant: the process between a guard and the command it runs.
//!
//! Unlike other process trees, the command keeps the terminal, the environment and the working
//! directory of the guard's caller. The attendant leads the command's process group and adopts its
//! orphans. It therefore receives what a terminal sends to the group, reaps everything, and ends
//! the whole tree when the guard disconnects or dies.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use creel_model::id::ResourceId;
use creel_model::os;
use creel_model::os::ProcessKey;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getpid, getppid, kill_process, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::cgroup::GroupRecord;
use super::channel::{AttendantCommand, AttendantReport, Channel, Received, write_message};
use super::cover::SocketCover;
use super::holder::{HolderError, ending_of};
use super::lease::LeaseWatch;
use super::{terminal, tree};

/// How long one attempt to end the tree may take before the next one.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long the guard may take to send its first request.
const START_PATIENCE: Duration = Duration::from_secs(15);

/// The arguments of an attendant.
#[derive(Debug)]
pub struct Attendance {
    /// The socket of the guard.
    pub socket: PathBuf,
    /// The resource that the tree belongs to.
    pub resource: ResourceId,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Runs the command and manages its tree until the guard disconnects.
///
/// # Errors
///
/// Fails when the guard cannot be reached or the system refuses a step.
pub fn attend(attendance: &Attendance) -> Result<(), HolderError> {
    let guard = UnixStream::connect(&attendance.socket)?;
    let mut channel = Channel::over(guard);
    let begin = match channel.receive(Some(START_PATIENCE))? {
        Received::Message(AttendantCommand::Begin { cgroups, lease, lease_file, cover }) => {
            // First of all: the process must not have a second thread yet.
            if let Some(Err(error)) = cover.as_ref().map(SocketCover::put_on) {
                let reason = format!("the guard's socket cannot be put in place: {error}");
                channel.send(&AttendantReport::Refused { reason, not_found: false })?;
                return Ok(());
            }
            Begin { cgroups, lease: LeaseWatch::start(lease_file, lease) }
        }
        Received::Message(_) | Received::Silence | Received::End => {
            return Err(HolderError::NoRequest);
        }
    };
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT])?;
    for group in &begin.cgroups {
        // A tree outside its control groups is still found by marker and descent.
        let _ = group.join();
    }
    let guard = getppid().and_then(group_of);
    let ended = run(attendance, &mut channel, begin, signals, guard);
    // Needed when the guard disconnected before the command ended.
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
    thread::Builder::new().spawn(move || forward_signals(signals, &signalled))?;
    loop {
        match channel.receive(Some(lease.period())) {
            Ok(Received::Message(AttendantCommand::Signal { signal })) => {
                signal_group(group, signal)
            }
            Ok(Received::Message(AttendantCommand::Resume)) => signal_group(group, SIGCONT),
            Ok(Received::Silence) if !lease.has_expired() => {}
            // The guard disconnected or died, or the lease was not renewed.
            Ok(
                Received::Message(AttendantCommand::Begin { .. })
                | Received::Silence
                | Received::End,
            )
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

/// Reaps every child, and reports the end of the command to the guard.
///
/// The guard's process group gets the terminal back first, because the guard may write to it.
fn reap(command: Pid, guard: &UnixStream, group: Option<Pid>) {
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if pid == command
            && let Some(ending) = ending_of(status)
        {
            let _ = group.map(terminal::hand_over);
            // A guard that is gone needs no report: the main thread ends the tree.
            let _ = write_message(guard, &AttendantReport::Ended(ending));
        }
    }
}

/// Forwards signals to the process group, from the terminal or another process, to the guard.
fn forward_signals(mut signals: Signals, guard: &UnixStream) {
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

/// Returns the process group of a process, if this process can see it.
///
/// Kernel threads and processes of other namespaces have none.
fn group_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(os::process_stat(pid.as_raw_pid()).ok()?.group)
}

/// Sends a signal to every process of the group but this one.
fn signal_group(group: Pid, signal: i32) {
    let Some(signal) = Signal::from_named_raw(signal) else { return };
    let me = getpid();
    for pid in os::all_pids().unwrap_or_default().into_iter().filter_map(Pid::from_raw) {
        if pid != me && group_of(pid) == Some(group) {
            // A process that has ended meanwhile needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

/// The argument that turns a holder into an attendant.
const ATTEND: &str = "attend";

impl Attendance {
    /// Returns the arguments after those of the holder program.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let own = [ATTEND.into(), self.socket.clone().into(), self.resource.to_string().into()];
        own.into_iter().chain(self.command.iter().cloned()).collect()
    }

    /// Parses the arguments after those of the holder program; `None` for an ordinary holder.
    pub fn of_arguments(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        if arguments.next()? != ATTEND {
            return None;
        }
        let socket = PathBuf::from(arguments.next()?);
        let resource = arguments.next()?.to_str()?.parse().ok()?;
        Some(Self { socket, resource, command: arguments.collect() })
    }
}
