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
    Pid, Signal, WaitOptions, getpgid, getpgrp, getpid, getppid, kill_process, set_child_subreaper,
    setpgid, wait,
};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTOU};
use signal_hook::iterator::Signals;

use crate::id::ResourceId;
use crate::os::{self, ProcessKey};

use super::channel::{AttendantOrder, AttendantReport, Channel, Heard, write_message};
use super::holder::{HolderError, ending_of};
use super::lease::LeaseWatch;
use super::{cgroup, tree};

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
        Heard::Message(AttendantOrder::Begin { cgroups, lease, lease_file }) => {
            Begin { cgroups, lease: LeaseWatch::start(lease_file, lease) }
        }
        Heard::Message(_) | Heard::Silence | Heard::End => return Err(HolderError::NoOrder),
    };
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    // A group of its own, so that nothing meant for the guard's group hits the command, and the
    // other way round. It fails only for one that leads a group already.
    let _ = setpgid(None, None);
    // Taking the terminal would stop this process otherwise: it is not in the foreground yet.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGTTOU])?;
    let terminal = Terminal::of_guard();
    terminal.take();
    for group in &order.cgroups {
        // A tree outside of its groups is still found by marker and descent.
        let _ = cgroup::join(group);
    }
    let ended = run(attendance, &mut channel, order, signals, &terminal);
    terminal.give_back();
    ended
}

struct Begin {
    cgroups: Vec<PathBuf>,
    lease: LeaseWatch,
}

fn run(
    attendance: &Attendance,
    channel: &mut Channel,
    begin: Begin,
    signals: Signals,
    terminal: &Terminal,
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
    let (shown, group) = (terminal.clone(), getpgrp());
    thread::Builder::new().spawn(move || reap(command, &reaps, &shown))?;
    thread::Builder::new().spawn(move || tell_signals(signals, &signalled))?;
    loop {
        match channel.receive(Some(lease.period())) {
            Ok(Heard::Message(AttendantOrder::Signal { signal })) => signal_group(group, signal),
            Ok(Heard::Message(AttendantOrder::Resume)) => {
                terminal.take();
                signal_group(group, SIGCONT);
            }
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

/// Reaps every child, and tells the guard when the command is among them.
fn reap(command: Pid, guard: &UnixStream, terminal: &Terminal) {
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if pid == command
            && let Some(ending) = ending_of(status)
        {
            terminal.give_back();
            // A guard that is gone needs no telling: the main thread ends the tree.
            let _ = write_message(guard, &AttendantReport::Ended(ending));
        }
    }
}

/// Tells the guard what the terminal, or whoever signals the whole group, sent to it.
fn tell_signals(mut signals: Signals, guard: &UnixStream) {
    for signal in signals.forever() {
        let report = match signal {
            SIGCONT | SIGTTOU => continue,
            SIGTSTP => AttendantReport::Suspended,
            signal => AttendantReport::Signalled { signal },
        };
        if write_message(guard, &report).is_err() {
            return;
        }
    }
}

/// Sends a signal to every process of the group but this one.
fn signal_group(group: Pid, signal: i32) {
    let Some(signal) = Signal::from_named_raw(signal) else { return };
    let me = getpid().as_raw_pid();
    let is_member = |pid: &i32| {
        *pid != me && os::process_stat(*pid).is_ok_and(|stat| stat.group == group.as_raw_pid())
    };
    for pid in os::all_pids().unwrap_or_default().into_iter().filter(is_member) {
        // Whoever ended meanwhile needs none.
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
    }
}

/// The terminal that the guard was called from, if it has the foreground of one.
#[derive(Debug, Clone)]
struct Terminal {
    guards_group: Option<Pid>,
}

impl Terminal {
    fn of_guard() -> Self {
        let guard = getpgid(getppid()).ok();
        let has_foreground = |group: &Pid| {
            isatty(io::stdin()) && tcgetpgrp(io::stdin()).is_ok_and(|front| front == *group)
        };
        Self { guards_group: guard.filter(has_foreground) }
    }

    /// Puts the command's group in the foreground.
    fn take(&self) {
        if self.guards_group.is_some() {
            // Without it the command reads nothing, which it will say itself.
            let _ = tcsetpgrp(io::stdin(), getpgrp());
        }
    }

    /// Puts the guard's group in the foreground again.
    fn give_back(&self) {
        if let Some(group) = self.guards_group {
            let _ = tcsetpgrp(io::stdin(), group);
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
        .arg0("creel");
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
