//! The processes below this one: finding, ending and reaping them.
//!
//! Whoever uses this is a *child subreaper*: a process whose parent dies becomes
//! a child of the nearest such ancestor. So all that a command leaves behind
//! stays below the process that started it, whatever it forks, and "no child is
//! left" is known from `wait` itself.
//!
//! # What is spared
//!
//! A *bridge* (`creel-bridge serve`) outlives the command that started it, by
//! design. It is known by three signs together: it leads a session, it runs this
//! very program file, and its first argument is the word that only `serve` gives
//! to itself. It and all below it are never looked at.

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
pub(crate) const BRIDGE_WORD: &str = "bridge";
/// How often everything is stopped before the killing starts anyway.
const STOP_ROUNDS: usize = 50;
/// How long the killed may take to die before the next look.
const ROUND: Duration = Duration::from_millis(2);

/// A process that cannot be confused with a later one of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: i32,
    started_ticks: u64,
}

/// What `/proc/PID/stat` says.
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
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name of the program may hold spaces and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            started_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// A process whose first thread has ended looks like a zombie while its other threads work on.
    fn is_dead(self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }
}

/// Which processes are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those below this process that did not make a session of their own.
    Session,
    /// All below this process, but bridges.
    Below,
    /// All below this process, bridges too; and all others where this is the first process of a
    /// pid namespace.
    Everything,
}

/// What a scope holds, and what is left when it has been ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Cleared {
    /// Nothing is left.
    Empty,
    /// These many processes do not die.
    Left(usize),
}

/// Reaps every child that has ended, and tells of each.
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

/// Kills all processes of a scope, and waits until they are gone or the patience ends.
///
/// Children are reaped on the way, and told of.
///
/// # When nothing is left
///
/// A look that finds nobody proves nothing by itself: a process that forks and ends at once, again
/// and again, is each time born after the look passed its place. But each of these becomes a child
/// of this process and is reaped by it. So a look counts only where no child has ended since the
/// reaping before it: then whoever lived had a child of this process above it, or was one, that
/// lived through the whole look, and was seen.
pub(crate) fn end(
    scope: Scope,
    patience: Duration,
    mut each: impl FnMut(Pid, WaitStatus),
) -> Cleared {
    let deadline = Instant::now() + patience;
    let mut looked_clean = false;
    loop {
        let mut has_reaped = false;
        let has_children = reap(|pid, status| {
            has_reaped = true;
            each(pid, status);
        });
        // Orphans become children of this process, so without a child there is nobody; only the
        // first process of a namespace has others beside its children.
        let has_others = scope == Scope::Everything && is_first();
        if (looked_clean && !has_reaped) || (!has_children && !has_others) {
            return Cleared::Empty;
        }
        let found = stop_all(scope);
        found.iter().for_each(|key| signal(*key, Signal::KILL));
        if Instant::now() >= deadline {
            return Cleared::Left(found.len().max(1));
        }
        looked_clean = found.is_empty();
        if !looked_clean {
            thread::sleep(ROUND);
        }
    }
}

/// Asks all processes of a scope to end; returns how many there are.
pub(crate) fn ask_to_end(scope: Scope) -> usize {
    let found = members(scope);
    found.iter().for_each(|key| signal(*key, Signal::TERM));
    found.len()
}

/// Returns how many processes of a scope there are.
pub(crate) fn count(scope: Scope) -> usize {
    members(scope).len()
}

/// Stops all until no new one appears, so that none can fork while others are killed.
fn stop_all(scope: Scope) -> HashSet<Key> {
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

/// Sends a signal to exactly this process; one that is gone or not ours needs none.
fn signal(key: Key, signal: Signal) {
    let Some(pid) = Pid::from_raw(key.pid) else { return };
    let is_same = || Stat::of(key.pid).is_some_and(|now| now.started_ticks == key.started_ticks);
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The handle pins whoever has the id now: compare before it is used.
        Ok(handle) if is_same() => {
            let _ = pidfd_send_signal(&handle, signal);
        }
        // Some sandboxes have no handles for processes.
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) if is_same() => {
            let _ = kill_process(pid, signal);
        }
        Ok(_) | Err(_) => {}
    }
}

fn is_first() -> bool {
    getpid().as_raw_pid() == 1
}

/// Returns the living processes of a scope.
fn members(scope: Scope) -> Vec<Key> {
    let me = getpid().as_raw_pid();
    let seen = all();
    if scope == Scope::Everything && is_first() {
        return keys(&seen, seen.keys().copied().filter(|pid| *pid != me));
    }
    let session = seen.get(&me).map(|stat| stat.session);
    let below = below(&seen, me, scope != Scope::Everything);
    let is_meant =
        |pid: &i32| scope != Scope::Session || seen.get(pid).map(|one| one.session) == session;
    keys(&seen, below.into_iter().filter(is_meant))
}

fn keys(seen: &HashMap<i32, Stat>, pids: impl Iterator<Item = i32>) -> Vec<Key> {
    pids.filter_map(|pid| {
        let stat = seen.get(&pid).filter(|stat| !stat.is_dead())?;
        Some(Key { pid, started_ticks: stat.started_ticks })
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

/// Returns what descends from a process, without it.
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
    stat.session == pid && has_bridge_word(pid) && runs_this_program(pid).unwrap_or(false)
}

fn has_bridge_word(pid: i32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(1) == Some(BRIDGE_WORD.as_bytes())
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
    fn a_program_name_with_parentheses_does_not_confuse() {
        let rest = (5..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let stat = Stat::parse(&format!("7 (a) Z (b)) S 4 {rest}")).unwrap();
        assert_eq!((stat.state, stat.parent, stat.session), ('S', 4, 6));
        assert_eq!(stat.started_ticks, 22);
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
