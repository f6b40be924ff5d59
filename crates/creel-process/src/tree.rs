//! Finds and ends process trees through `/proc`.
//!
//! A process belongs to a tree when its environment carries the exact marker, when it is in a
//! control group that was created for the tree, or when it descends from such a process. Nothing
//! else is ever signalled: every signal goes through a pidfd whose process was compared with the
//! observed one. This process and its ancestors are always left out.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use creel_model::id::ResourceId;
use creel_model::os;
use creel_model::os::ProcessKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::RESOURCE_VARIABLE;
use super::cgroup::{self, GroupRecord};

/// Maximum number of processes to wait for at once: each takes a file descriptor.
const WATCHED_AT_ONCE: usize = 128;
/// Maximum number of stop rounds before the kills start anyway.
const STOP_ROUNDS: usize = 50;
/// How long one round waits for killed processes to die before it scans again.
const ROUND: Duration = Duration::from_millis(500);

/// One process, as observed in `/proc`.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The identity of the process.
    pub key: ProcessKey,
    /// Its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// The resource that its environment names.
    marker: Option<String>,
    /// Whether a signal stopped it.
    is_stopped: bool,
}

/// All living processes at one moment, with indexes to find those of a tree without a full scan.
#[derive(Debug)]
pub(super) struct ProcessCensus {
    seen: Vec<Seen>,
    spared: HashSet<i32>,
    /// The processes that carry the marker of a resource, by their index in `seen`.
    marked: HashMap<String, Vec<usize>>,
    /// The index of a process in `seen`.
    places: HashMap<i32, usize>,
    /// The children of a process.
    children: HashMap<i32, Vec<usize>>,
}

impl ProcessCensus {
    /// Scans all processes.
    pub(super) fn take() -> io::Result<Self> {
        let seen: Vec<Seen> = os::all_pids()?.into_iter().filter_map(inspect_process).collect();
        let spared = self_and_ancestors(&seen);
        let (mut marked, mut places, mut children) =
            (HashMap::<_, Vec<_>>::new(), HashMap::new(), HashMap::<_, Vec<_>>::new());
        for (place, one) in seen.iter().enumerate() {
            if let Some(marker) = &one.marker {
                marked.entry(marker.clone()).or_default().push(place);
            }
            places.insert(one.key.pid, place);
            children.entry(one.parent).or_default().push(place);
        }
        Ok(Self { seen, spared, marked, places, children })
    }

    /// Returns the processes of a tree, the oldest first.
    pub(super) fn members(&self, resource: &ResourceId, groups: &[GroupRecord]) -> Vec<&Seen> {
        let marked = self.marked.get(&resource.to_string()).into_iter().flatten().copied();
        let grouped = cgroup::pids_in(groups, resource);
        let grouped = grouped.iter().filter_map(|pid| self.places.get(pid)).copied();
        let mut next: Vec<usize> = marked.chain(grouped).collect();
        let mut found = HashSet::new();
        // Descendants belong too, even those that dropped both marker and group.
        while let Some(place) = next.pop() {
            if found.insert(place) {
                next.extend(self.children_of(&self.seen[place].key));
            }
        }
        let members = found.into_iter().map(|place| &self.seen[place]);
        let mut members: Vec<&Seen> =
            members.filter(|one| !self.spared.contains(&one.key.pid)).collect();
        members.sort_by_key(|one| (one.key.started_ticks, one.key.pid));
        members
    }

    /// Returns the children of a process that is still the observed one.
    ///
    /// Its pid may have passed to another process during the scan, and the children may then belong
    /// to that process. Its own children have another parent by the next scan.
    fn children_of(&self, parent: &ProcessKey) -> impl Iterator<Item = usize> {
        let children = self.children.get(&parent.pid).map(Vec::as_slice).unwrap_or_default();
        let is_same = !children.is_empty()
            && os::process_stat(parent.pid)
                .is_ok_and(|stat| stat.started_ticks == parent.started_ticks);
        children.iter().copied().filter(move |_| is_same)
    }
}

fn inspect_process(pid: i32) -> Option<Seen> {
    let before = os::process_stat(pid).ok()?;
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let after = os::process_stat(pid).ok()?;
    // The pid may have passed to another process in between.
    if before.started_ticks != after.started_ticks || after.is_dead() {
        return None;
    }
    Some(Seen {
        key: ProcessKey { pid, started_ticks: after.started_ticks },
        parent: after.parent,
        group: after.group,
        marker: marker_in(&environ),
        is_stopped: matches!(after.state, 'T' | 't'),
    })
}

/// Returns the whole value of the marker variable.
fn marker_in(environ: &[u8]) -> Option<String> {
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(RESOURCE_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

fn self_and_ancestors(seen: &[Seen]) -> HashSet<i32> {
    let mut line = HashSet::new();
    let mut pid = getpid().as_raw_pid();
    while line.insert(pid) {
        match seen.iter().find(|one| one.key.pid == pid) {
            Some(one) => pid = one.parent,
            None => break,
        }
    }
    line
}

/// Sends a signal to exactly this process; `None` when it is already gone.
///
/// The handle becomes readable when the process has ended.
pub(super) fn signal(process: &ProcessKey, signal: Signal) -> io::Result<Option<OwnedFd>> {
    let Some(handle) = handle_of(process)? else { return Ok(None) };
    match pidfd_send_signal(&handle, signal) {
        Ok(()) => Ok(Some(handle)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a handle to exactly this process; `None` when it is already gone.
pub(super) fn handle_of(process: &ProcessKey) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // The handle refers to the process that has the pid now: compare before it is used.
    Ok(if process.is_alive()? { Some(handle) } else { None })
}

/// Waits until all of these have ended, or the deadline; returns whether all have ended.
pub(super) fn wait_for_all(handles: &[OwnedFd], deadline: Instant) -> io::Result<bool> {
    for handle in handles {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(true)
}

/// Why a tree still exists.
#[derive(Debug, thiserror::Error)]
pub(super) enum StillThere {
    /// These processes do not die.
    #[error("processes {} do not end", pids(.0))]
    Survivors(Vec<i32>),
    /// The system refused to read it.
    #[error("the process tree cannot be read: {0}")]
    Unseen(#[from] io::Error),
}

fn pids(survivors: &[i32]) -> String {
    survivors.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}

/// Ends every process of a tree and waits until they are gone: two clean scans in a row.
pub(super) fn end(
    resource: &ResourceId,
    groups: &[GroupRecord],
    deadline: Instant,
) -> Result<(), StillThere> {
    let mut clean_passes = 0;
    while clean_passes < 2 {
        for group in groups {
            // The scan of `/proc` below finds what this could not reach.
            let _ = group.kill(resource);
        }
        let survivors = kill_round(resource, groups, deadline)?;
        if survivors.is_empty() {
            clean_passes += 1;
        } else if Instant::now() >= deadline {
            return Err(StillThere::Survivors(survivors));
        } else {
            clean_passes = 0;
        }
    }
    Ok(())
}

/// Kills the processes found now; returns their pids.
fn kill_round(
    resource: &ResourceId,
    groups: &[GroupRecord],
    deadline: Instant,
) -> io::Result<Vec<i32>> {
    let members = stop_all(resource, groups)?;
    let mut handles = Vec::new();
    for member in &members {
        // A process that may not be signalled is reported at the deadline; the others must still be
        // killed.
        if let Ok(Some(handle)) = signal(member, Signal::KILL)
            && handles.len() < WATCHED_AT_ONCE
        {
            handles.push(handle);
        }
    }
    if !wait_for_all(&handles, deadline.min(Instant::now() + ROUND))? {
        for member in &members {
            let _ = cgroup::leave_freezer(member, groups, resource);
        }
    }
    Ok(members.iter().map(|member| member.pid).collect())
}

/// Resumes everything in a tree that was stopped or frozen from inside or outside. Returns whether
/// anything was.
pub(super) fn wake(resource: &ResourceId, groups: &[GroupRecord]) -> io::Result<bool> {
    let mut was_asleep = false;
    for group in groups {
        was_asleep |= group.thaw(resource);
    }
    for member in ProcessCensus::take()?.members(resource, groups) {
        was_asleep |= cgroup::leave_freezer(&member.key, groups, resource);
        if member.is_stopped {
            was_asleep = true;
            // A process that may not be signalled is not ours.
            let _ = signal(&member.key, Signal::CONT);
        }
    }
    Ok(was_asleep)
}

/// Stops all members until no new one appears, so that none can fork while others are killed.
fn stop_all(resource: &ResourceId, groups: &[GroupRecord]) -> io::Result<Vec<ProcessKey>> {
    let mut stopped: HashSet<ProcessKey> = HashSet::new();
    for _ in 0..STOP_ROUNDS {
        let census = ProcessCensus::take()?;
        let before = stopped.len();
        for member in census.members(resource, groups) {
            if stopped.insert(member.key) {
                // A process that cannot be stopped is still killed.
                let _ = signal(&member.key, Signal::STOP);
            }
        }
        if stopped.len() == before {
            break;
        }
    }
    Ok(stopped.into_iter().collect())
}

/// Returns the oldest member whose parent is not a member: the holder, as long as it lives.
pub(super) fn root_of<'a>(members: &[&'a Seen]) -> Option<&'a Seen> {
    let is_member = |pid: i32| members.iter().any(|one| one.key.pid == pid);
    members.iter().copied().find(|one| !is_member(one.parent))
}

/// The processes of a running tree by their role.
#[derive(Debug)]
pub(super) struct Roles {
    /// The holder.
    pub holder: ProcessKey,
    /// The process group of the workload, its leader first.
    pub workload: Vec<ProcessKey>,
}

impl Roles {
    /// Derives the roles from the shape of the tree: the holder, its child, and that one's first
    /// child.
    pub(super) fn of(members: &[&Seen]) -> Option<Self> {
        let child_of = |parent: i32| members.iter().filter(move |one| one.parent == parent);
        let holder = root_of(members)?;
        let init = child_of(holder.key.pid).next()?;
        let leader = child_of(init.key.pid).find(|one| one.group == one.key.pid)?;
        let in_group = |one: &&&Seen| one.group == leader.key.pid;
        Some(Self {
            holder: holder.key,
            workload: members.iter().filter(in_group).map(|one| one.key).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_value_of_the_whole_variable_is_a_marker() {
        let marker = |environ: &[u8]| marker_in(environ);
        assert_eq!(marker(b"A=1\0CREEL_RESOURCE=res_1\0B=2\0").as_deref(), Some("res_1"));
        assert_eq!(marker(b"CREEL_RESOURCE=res_10\0").as_deref(), Some("res_10"));
        assert_eq!(marker(b"XCREEL_RESOURCE=res_1\0"), None);
        assert_eq!(marker(b"CREEL_RESOURCES=res_1\0"), None);
        assert_eq!(marker(b""), None);
    }

    #[test]
    fn this_process_and_its_ancestors_are_never_members() {
        let census = ProcessCensus::take().expect("procfs is mounted");
        assert!(census.spared.contains(&getpid().as_raw_pid()));
        assert!(census.spared.len() > 1);
    }

    #[test]
    fn a_recycled_pid_is_not_signalled() {
        let mut other = ProcessKey::of_this_process().expect("procfs is mounted");
        other.started_ticks += 1;
        let sent = signal(&other, Signal::KILL).expect("this process exists");
        assert!(sent.is_none());
    }
}
