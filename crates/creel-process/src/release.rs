//! Stops and releases process trees and directories.
//!
//! The sidecar is removed last: a crash in the middle of a release leaves it behind, and the next
//! release finds the rest by it.

use std::io;
use std::time::{Duration, Instant};

use creel_model::crashpoint::{Crashpoint, reach};
use creel_model::id::ResourceId;
use creel_model::provider::{
    ErrorClass, Identity, IdentityCheck, Kind, ReleaseMode, Released, Result,
};
use rustix::process::Signal;

use super::cgroup::{self, GroupRecord};
use super::directory::{self, DirectoryRefusal};
use super::inode::Inode;
use super::observe;
use super::sidecar::{SidecarDirectory, write_whole};
use super::state::{ProviderState, checked, failure, io_failure};
use super::tree::{self, ProcessCensus, Roles, StillThere};
use super::tree_record::ProcessEnding;

/// How long killed processes may take to disappear.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(10);

impl ProviderState {
    /// Releases an object and removes its record.
    pub(super) fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        self.reap_holders();
        let operation = format!("release {kind} {id}");
        let resource = checked(kind, id, &operation)?;
        let records = self.records(&operation)?;
        match kind {
            Kind::Directory => {
                release_directory(&records, &resource, mode.expected.as_ref(), &operation)
            }
            _ => self.release_process(&records, &resource, mode, &operation),
        }
    }

    /// Ends the workload and keeps the record of how it ended.
    pub(super) fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        self.reap_holders();
        let operation = format!("stop {kind} {id}");
        let wrong = |error: io::Error| io_failure(&operation, &error);
        if kind != Kind::Process {
            return Err(failure(&operation, ErrorClass::Invalid, format!("a {kind} does not run")));
        }
        let resource = checked(kind, id, &operation)?;
        let records = self.records(&operation)?;
        let gone = || failure(&operation, ErrorClass::Gone, "there is no such process tree");
        observe::process(&records, &resource).map_err(wrong)?.ok_or_else(gone)?;
        let record = records.read(&resource).map_err(wrong)?;
        stop_politely(&resource, record.groups(), timeout).map_err(wrong)?;
        kill_workload(&resource, record.groups()).map_err(wrong)?;
        self.end_tree(&records, &resource, &operation)?;
        if records.read_ending(&resource).is_none() {
            // No holder was left to record the ending, so the kill above is the ending.
            let ending = ProcessEnding::Signal(Signal::KILL.as_raw());
            let text = serde_json::to_vec(&ending).map_err(|error| wrong(error.into()))?;
            write_whole(&records.ending_file(&resource), &text).map_err(wrong)?;
        }
        Ok(())
    }

    fn release_process(
        &self,
        records: &SidecarDirectory,
        resource: &ResourceId,
        mode: ReleaseMode,
        operation: &str,
    ) -> Result<Released> {
        let wrong = |error: io::Error| io_failure(operation, &error);
        let Some(seen) = observe::process(records, resource).map_err(wrong)? else {
            return Ok(Released::AlreadyGone);
        };
        if let Some(other) = mode.other_id(&resource.object_name()) {
            return Ok(Released::Kept(other));
        }
        if seen.state == "unknown" {
            let message = "it was made in another pid namespace and cannot be seen from here";
            return Err(failure(operation, ErrorClass::Denied, message));
        }
        let record = records.read(resource).map_err(wrong)?;
        let runs = match seen.state.as_str() {
            // This state says nothing about its processes.
            "unreadable" => {
                let census = ProcessCensus::take().map_err(wrong)?;
                !census.members(resource, record.groups()).is_empty()
            }
            _ => seen.is_running(),
        };
        if runs && !mode.kill_running {
            return Err(failure(operation, ErrorClass::InUse, "it is running now"));
        }
        if let (true, Some(timeout)) = (runs, mode.stop_timeout) {
            stop_politely(resource, record.groups(), timeout).map_err(wrong)?;
        }
        self.end_tree(records, resource, operation)?;
        reach(Crashpoint::ReleaseSent);
        records.forget(resource).map_err(wrong)?;
        Ok(Released::Done)
    }

    /// Ends every process of the tree, then removes its control groups.
    pub(super) fn end_tree(
        &self,
        records: &SidecarDirectory,
        resource: &ResourceId,
        operation: &str,
    ) -> Result<()> {
        let wrong = |error: io::Error| io_failure(operation, &error);
        let record = records.read(resource).map_err(wrong)?;
        let ended = tree::end(resource, record.groups(), Instant::now() + KILL_PATIENCE);
        self.reap_holders();
        ended.map_err(|error| match error {
            StillThere::Unseen(error) => io_failure(operation, &error),
            StillThere::Survivors(_) => {
                failure(operation, ErrorClass::Transient, error.to_string())
            }
        })?;
        cgroup::remove_unrecorded(resource, record.groups());
        record.groups().iter().try_for_each(|group| group.remove(resource)).map_err(wrong)
    }
}

/// Sends SIGTERM to the workload, and waits until the tree has ended or the timeout.
fn stop_politely(
    resource: &ResourceId,
    groups: &[GroupRecord],
    timeout: Duration,
) -> io::Result<()> {
    let census = ProcessCensus::take()?;
    let Some(roles) = Roles::of(&census.members(resource, groups)) else { return Ok(()) };
    for process in &roles.workload {
        // A process that may not be signalled is killed later.
        let _ = tree::signal(process, Signal::TERM);
    }
    // A frozen or stopped process would not react.
    tree::wake(resource, groups)?;
    wait_for_holder(&roles, timeout)
}

/// Kills only the workload, so that the holder can still record how it ended.
fn kill_workload(resource: &ResourceId, groups: &[GroupRecord]) -> io::Result<()> {
    let census = ProcessCensus::take()?;
    let Some(roles) = Roles::of(&census.members(resource, groups)) else { return Ok(()) };
    if let Some(leader) = roles.workload.first() {
        let _ = tree::signal(leader, Signal::KILL);
    }
    tree::wake(resource, groups)?;
    wait_for_holder(&roles, KILL_PATIENCE)
}

fn wait_for_holder(roles: &Roles, patience: Duration) -> io::Result<()> {
    if let Some(holder) = tree::handle_of(&roles.holder)? {
        tree::wait_for_all(&[holder], Instant::now() + patience)?;
    }
    Ok(())
}

/// Removes a directory if it is the expected one.
///
/// The expected directory is the one in the ledger, or the one in the sidecar if the caller names
/// none. A directory that replaced it is kept. Ours is then gone, and its record is removed.
pub(super) fn release_directory(
    records: &SidecarDirectory,
    resource: &ResourceId,
    expected: Option<&Identity>,
    operation: &str,
) -> Result<Released> {
    let wrong = |error: io::Error| io_failure(operation, &error);
    if observe::directory(records, resource).map_err(wrong)?.is_none() {
        return Ok(Released::AlreadyGone);
    }
    if let Some(user) = observe::user_of(records, resource).map_err(wrong)? {
        let message = format!("process {} runs in it", user.name);
        return Err(failure(operation, ErrorClass::InUse, message));
    }
    let record = records.read(resource).map_err(wrong)?;
    let recorded = record.sidecar().and_then(|sidecar| sidecar.inode.clone());
    let wanted = expected.map_or_else(|| recorded.clone(), Inode::of_identity);
    let kept = match directory::remove(records, resource, wanted.as_ref()) {
        Ok(()) => None,
        Err(refusal @ (DirectoryRefusal::NotADirectory(_) | DirectoryRefusal::Foreign(_))) => {
            Some(refusal)
        }
        Err(refusal @ DirectoryRefusal::Mounted(_)) => {
            return Err(failure(operation, ErrorClass::InUse, refusal.to_string()));
        }
        Err(DirectoryRefusal::System(error)) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(failure(operation, ErrorClass::InUse, error.to_string()));
        }
        Err(DirectoryRefusal::System(error)) => return Err(wrong(error)),
    };
    if let Some(refusal) = &kept
        && !recorded.or(wanted).is_some_and(|ours| ours.is_distinctive())
    {
        let why = refusal.to_string();
        return Ok(Released::Kept(IdentityCheck::Unproven { why }));
    }
    reach(Crashpoint::ReleaseSent);
    records.forget(resource).map_err(wrong)?;
    Ok(match kept {
        None => Released::Done,
        Some(refusal) => Released::Kept(IdentityCheck::Replaced { why: refusal.to_string() }),
    })
}
