//! Stopping and releasing process trees and directories.
//!
//! The sidecar goes last: a crash in the middle of a release leaves it behind,
//! and the next release finds the rest by it.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::crashpoint::{Crashpoint, reach};
use crate::id::ResourceId;
use crate::provider::{ErrorClass, Identity, IdentityCheck, Kind, ReleaseMode, Released, Result};

use super::channel::Ending;
use super::directory::{self, Refusal};
use super::group::{self, GroupRecord};
use super::inode::Inode;
use super::observe;
use super::sidecar::{Shelf, resource_of_object, write_whole};
use super::tree::{self, Census, Roles, StillThere};
use super::world::{World, failure, io_failure};

/// How long killed processes may take to be gone.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(10);

impl World {
    /// Ends an object and forgets it.
    pub(super) fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        self.reap_holders();
        let operation = format!("release {kind} {id}");
        let Some((shelf, resource)) = self.locate(id, &operation)? else {
            return Ok(Released::AlreadyGone);
        };
        match kind {
            Kind::Process => self.release_process(&shelf, &resource, mode, &operation),
            Kind::Directory => {
                release_directory(&shelf, &resource, mode.expected.as_ref(), &operation)
            }
            _ => Ok(Released::AlreadyGone),
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
        let located = self.locate(id, &operation)?;
        let gone = || failure(&operation, ErrorClass::Gone, "there is no such process tree");
        let (shelf, resource) = located.ok_or_else(gone)?;
        observe::process(&shelf, &resource).map_err(wrong)?.ok_or_else(gone)?;
        let record = shelf.read(&resource).map_err(wrong)?;
        stop_politely(&resource, record.groups(), timeout).map_err(wrong)?;
        kill_workload(&resource, record.groups()).map_err(wrong)?;
        self.end_tree(&shelf, &resource, &operation)?;
        if shelf.read_ending(&resource).is_none() {
            // The holder was not there to tell, so the kill above is the ending.
            let ending = Ending::Signal(Signal::KILL.as_raw());
            let text = serde_json::to_vec(&ending).map_err(|error| wrong(error.into()))?;
            write_whole(&shelf.ending_file(&resource), &text).map_err(wrong)?;
        }
        Ok(())
    }

    fn locate(&self, id: &str, operation: &str) -> Result<Option<(Shelf, ResourceId)>> {
        let Some(resource) = resource_of_object(id) else { return Ok(None) };
        Ok(Some((self.shelf(operation)?, resource)))
    }

    fn release_process(
        &self,
        shelf: &Shelf,
        resource: &ResourceId,
        mode: ReleaseMode,
        operation: &str,
    ) -> Result<Released> {
        let wrong = |error: io::Error| io_failure(operation, &error);
        let Some(seen) = observe::process(shelf, resource).map_err(wrong)? else {
            return Ok(Released::AlreadyGone);
        };
        if seen.state == "unknown" {
            let message = "it was made in another pid namespace and cannot be seen from here";
            return Err(failure(operation, ErrorClass::Denied, message));
        }
        let record = shelf.read(resource).map_err(wrong)?;
        let census = Census::take().map_err(wrong)?;
        let runs = !census.members(resource, record.groups()).is_empty();
        if runs && !mode.kill_running {
            return Err(failure(operation, ErrorClass::InUse, "it is running now"));
        }
        if let (true, Some(timeout)) = (runs, mode.stop_timeout) {
            stop_politely(resource, record.groups(), timeout).map_err(wrong)?;
        }
        self.end_tree(shelf, resource, operation)?;
        reach(Crashpoint::ReleaseSent);
        shelf.forget(resource).map_err(wrong)?;
        Ok(Released::Done)
    }

    /// Ends every process of the tree, then removes its control groups.
    pub(super) fn end_tree(
        &self,
        shelf: &Shelf,
        resource: &ResourceId,
        operation: &str,
    ) -> Result<()> {
        let wrong = |error: io::Error| io_failure(operation, &error);
        let record = shelf.read(resource).map_err(wrong)?;
        let ended = tree::end(resource, record.groups(), Instant::now() + KILL_PATIENCE);
        self.reap_holders();
        ended.map_err(|error| match error {
            StillThere::Unseen(error) => io_failure(operation, &error),
            StillThere::Survivors(_) => {
                failure(operation, ErrorClass::Transient, error.to_string())
            }
        })?;
        group::remove_unrecorded(resource, record.groups());
        record.groups().iter().try_for_each(|group| group.remove(resource)).map_err(wrong)
    }
}

/// Asks the workload to end, and waits until the tree has, or for so long.
fn stop_politely(
    resource: &ResourceId,
    groups: &[GroupRecord],
    timeout: Duration,
) -> io::Result<()> {
    let census = Census::take()?;
    let Some(roles) = Roles::of(&census.members(resource, groups)) else { return Ok(()) };
    for process in &roles.workload {
        // One that may not be asked is killed later.
        let _ = tree::signal(process, Signal::TERM);
    }
    // One that is frozen or stopped would not notice.
    tree::wake(resource, groups)?;
    wait_for_holder(&roles, timeout)
}

/// Kills the workload alone, so that the holder can still tell how it ended.
fn kill_workload(resource: &ResourceId, groups: &[GroupRecord]) -> io::Result<()> {
    let census = Census::take()?;
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

/// Removes a directory that is the expected one: the one on the ledger, or where nobody asked the
/// ledger the one in the record beside it.
///
/// One that took its place is kept. Then ours is gone, and so is the record of it.
pub(super) fn release_directory(
    shelf: &Shelf,
    resource: &ResourceId,
    expected: Option<&Identity>,
    operation: &str,
) -> Result<Released> {
    let wrong = |error: io::Error| io_failure(operation, &error);
    if observe::directory(shelf, resource).map_err(wrong)?.is_none() {
        return Ok(Released::AlreadyGone);
    }
    if let Some(user) = observe::user_of(shelf, resource).map_err(wrong)? {
        let message = format!("process {} runs in it", user.name);
        return Err(failure(operation, ErrorClass::InUse, message));
    }
    let record = shelf.read(resource).map_err(wrong)?;
    let recorded = record.sidecar().and_then(|sidecar| sidecar.inode);
    let wanted = expected.map_or(recorded, Inode::of_identity);
    let kept = match directory::remove(shelf, resource, wanted.as_ref()) {
        Ok(()) => None,
        Err(refusal @ (Refusal::NotADirectory(_) | Refusal::Foreign(_))) => Some(refusal),
        Err(refusal @ Refusal::Mounted(_)) => {
            return Err(failure(operation, ErrorClass::InUse, refusal.to_string()));
        }
        Err(Refusal::System(error)) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(failure(operation, ErrorClass::InUse, error.to_string()));
        }
        Err(Refusal::System(error)) => return Err(wrong(error)),
    };
    if let Some(refusal) = &kept
        && recorded.or(wanted).is_none()
    {
        let why = refusal.to_string();
        return Ok(Released::Kept(IdentityCheck::Unproven { why }));
    }
    reach(Crashpoint::ReleaseSent);
    shelf.forget(resource).map_err(wrong)?;
    Ok(match kept {
        None => Released::Done,
        Some(refusal) => Released::Kept(IdentityCheck::Replaced { why: refusal.to_string() }),
    })
}
