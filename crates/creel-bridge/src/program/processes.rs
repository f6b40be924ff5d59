//! The processes below this one: finding, ending and reaping them.
//!
//! Every user of this module is a *child subreaper*: a process whose parent dies becomes a child of
//! the nearest such ancestor. So everything that a command leaves behind stays below the process
//! that started it, whatever it forks, and `wait` itself reports that no child is left.
//!
//! # What is spared
//!
//! A *bridge* (`creel-bridge serve`) outlives the command that started it, by design. Three
//! properties together identify it: it leads a session, it runs this very program file, and its
//! first argument is the one that only `serve` passes to itself. It and everything below it are
//! always skipped.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open,
    pidfd_send_signal, wait,
};

/// The first argument of a bridge that has detached itself.
pub(crate) const BRIDGE_ARG: &str = "bridge";
/// The maximum number of stop rounds before the killing starts anyway.
const STOP_ROUNDS: usize = 50;
/// How long killed processes may take to die before the next scan.
const ROUND: Duration = Duration::from_millis(2);

/// A process, distinguishable from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PidKey {
    pid: i32,
    started_ticks: u64,
}

/// The fields of `/proc/PID/stat` used here.
#[derive(Debug, Clone, Copy)]
struct Stat {
    state: char,
    parent: i32,
    session: i32,
    threads: u64,
    started_ticks: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name of the program may contain any bytes. The fields start after the last `)`.
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&text[name_end + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            started_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// Returns whether the process is dead. A process whose first thread has ended has the state of
    /// a zombie while its other threads still run.
    fn is_dead(self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }
}

/// The set of processes to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessScope {
    /// Processes below this one that did not create their own session.
    Session,
    /// All processes below this one, except bridges.
    Below,
    /// All processes below this one, including bridges. If this is the first process of a pid
    /// namespace, all others in it too.
    Everything,
}

/// The result of ending a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Cleared {
    /// No process is left.
    Empty,
    /// This many processes did not die.
    Left(usize),
}

/// Reaps every child that has ended, and passes each to `each`.
///
/// Returns whether a child is left.
pub(crate) fn reap(mut each: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => each(pid, status),
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Kills all processes of a scope, and waits until they are gone or `patience` ends.
///
/// Reaps children meanwhile, and passes each to `each`.
///
/// # When nothing is left
///
/// A scan that finds no process proves nothing by itself: a process that forks and ends at once,
/// again and again, can be born each time after the scan passed its place. But each of these
/// processes becomes a child of this process, which reaps it. So a scan counts only if no child has
/// ended since the reaping before it. Then every living process was, or had as ancestor, a child of
/// this process that lived through the whole scan and was found.
pub(crate) fn end(
    scope: ProcessScope,
    patience: Duration,
    mut each: impl FnMut(Pid, WaitStatus),
) -> Cleared {
    let deadline = Instant::now() + patience;
    let mut was_clean = false;
    loop {
        let mut has_reaped = false;
        let has_children = reap(|pid, status| {
            has_reaped = true;
            each(pid, status);
        });
        // Orphans become children of this process, so without a child there is no process to end.
        // Only the first process of a namespace has others beside its children.
        let has_others = scope == ProcessScope::Everything && is_first();
        if (was_clean && !has_reaped) || (!has_children && !has_others) {
            return Cleared::Empty;
        }
        let found = stop_all(scope);
        found.iter().for_each(|key| signal(*key, Signal::KILL));
        if Instant::now() >= deadline {
            return Cleared::Left(found.len().max(1));
        }
        was_clean = found.is_empty();
        if !was_clean {
            thread::sleep(ROUND);
        }
    }
}

/// Asks all processes of a scope to end, and returns their number.
pub(crate) fn ask_to_end(scope: ProcessScope) -> usize {
    let found = members(scope);
    found.iter().for_each(|key| signal(*key, Signal::TERM));
    found.len()
}

/// Returns the number of processes in a scope.
pub(crate) fn count(scope: ProcessScope) -> usize {
    members(scope).len()
}

/// Stops all processes until no new one appears, so that none can fork while others are killed.
fn stop_all(scope: ProcessScope) -> HashSet<PidKey> {
    let mut stopped = HashSet::new();
    for _ in 0..STOP_ROUNDS {
        let before = stopped.len();
        for key in members(scope) {
            if stopped.insert(key) {
                signal(key, Signal::STOP);
            }
        }
        if stopped.len() == before {
            break;
        }
    }
    stopped
}

/// Sends a signal to exactly this process. Ignores a process that is gone or not ours.
fn signal(key: PidKey, signal: Signal) {
    let Some(pid) = Pid::from_raw(key.pid) else { return };
    let is_same = || Stat::of(key.pid).is_some_and(|now| now.started_ticks == key.started_ticks);
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The handle refers to the current owner of the id, so compare before using it.
        Ok(handle) if is_same() => {
            let _ = pidfd_send_signal(&handle, signal);
        }
        // Some sandboxes do not support process handles.
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) if is_same() => {
            let _ = kill_process(pid, signal);
        }
        Ok(_) | Err(_) => {}
    }
}

fn is_first() -> bool {
    getpid().as_raw_pid() == 1
}

/// Returns the live processes of a scope.
fn members(scope: ProcessScope) -> Vec<PidKey> {
    let me = getpid().as_raw_pid();
    let seen = all();
    if scope == ProcessScope::Everything && is_first() {
        return keys(&seen, seen.keys().copied().filter(|pid| *pid != me));
    }
    let session = seen.get(&me).map(|stat| stat.session);
    let below = below(&seen, me, scope != ProcessScope::Everything);
    let is_meant = |pid: &i32| {
        scope != ProcessScope::Session || seen.get(pid).map(|one| one.session) == session
    };
    keys(&seen, below.into_iter().filter(is_meant))
}

fn keys(seen: &HashMap<i32, Stat>, pids: impl Iterator<Item = i32>) -> Vec<PidKey> {
    pids.filter_map(|pid| {
        let stat = seen.get(&pid).filter(|stat| !stat.is_dead())?;
        Some(PidKey { pid, started_ticks: stat.started_ticks })
    })
    .collect()
}

fn all() -> HashMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, Stat::of(pid)?)))
        .collect()
}

/// Returns the descendants of a process, without the process itself.
fn below(seen: &HashMap<i32, Stat>, root: i32, spare_bridges: bool) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, stat) in seen {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            let is_bridge = seen.get(&child).is_some_and(|stat| is_bridge(child, *stat));
            if !(spare_bridges && is_bridge) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// Returns whether a process is a bridge that has detached itself.
fn is_bridge(pid: i32, stat: Stat) -> bool {
    stat.session == pid && has_bridge_arg(pid) && runs_this_program(pid).unwrap_or(false)
}

fn has_bridge_arg(pid: i32) -> bool {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    cmdline.split(|byte| *byte == 0).nth(1) == Some(BRIDGE_ARG.as_bytes())
}

fn runs_this_program(pid: i32) -> io::Result<bool> {
    let (theirs, ours) =
        (fs::metadata(format!("/proc/{pid}/exe"))?, fs::metadata("/proc/self/exe")?);
    Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_the_name_of_its_program() {
        let rest = (5..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        for name in [&b"a) Z (b)"[..], b"\xff\xfe) x"] {
            let line = [b"7 (", name, format!(") S 4 {rest}").as_bytes()].concat();
            let stat = Stat::parse(&line).unwrap();
            assert_eq!((stat.state, stat.parent, stat.session), ('S', 4, 6));
            assert_eq!(stat.started_ticks, 22);
        }
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_not_dead_while_others_work() {
        let stat = Stat { state: 'Z', parent: 1, session: 1, threads: 2, started_ticks: 1 };
        assert!(!stat.is_dead());
        assert!(Stat { threads: 1, ..stat }.is_dead());
    }

    #[test]
    fn this_process_is_no_bridge_and_not_below_itself() {
        let me = getpid().as_raw_pid();
        let seen = all();
        assert!(!is_bridge(me, seen[&me]));
        assert!(!below(&seen, me, true).contains(&me));
    }
}
