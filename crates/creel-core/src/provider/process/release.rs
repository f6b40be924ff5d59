//! Stopping and releasing process trees and directories.
//!
//! The sidecar goes last: a crash in the middle of a release leaves it behind,
//! and the next release finds the rest by it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::crashpoint::{Crashpoint, reach};
use crate::id::ResourceId;
use crate::provider::{ErrorClass, Kind, ReleaseMode, Released, Result};

use super::cgroup::{self, Hierarchies};
use super::channel::Ending;
use super::sidecar::{Shelf, resource_of_object, write_whole};
use super::tree::{self, Census, Roles, StillThere};
use super::world::{World, failure, io_failure};
use super::{directory, observe};

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
            Kind::Directory => release_directory(&shelf, &resource, &operation),
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
        stop_politely(&resource, timeout).map_err(wrong)?;
        kill_workload(&resource).map_err(wrong)?;
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
        let runs = !Census::take().map_err(wrong)?.members(resource).is_empty();
        if runs && !mode.kill_running {
            return Err(failure(operation, ErrorClass::InUse, "it is running now"));
        }
        if let (true, Some(timeout)) = (runs, mode.stop_timeout) {
            stop_politely(resource, timeout).map_err(wrong)?;
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
        let groups = groups_of(shelf, resource).map_err(wrong)?;
        let ended = tree::end(resource, &groups, Instant::now() + KILL_PATIENCE);
        self.reap_holders();
        ended.map_err(|error| match error {
            StillThere::Unseen(error) => io_failure(operation, &error),
            StillThere::Survivors(_) => {
                failure(operation, ErrorClass::Transient, error.to_string())
            }
        })?;
        groups.iter().try_for_each(|group| cgroup::remove(group, resource)).map_err(wrong)
    }
}

/// Returns the groups that may exist: the recorded ones and those of the name near here.
fn groups_of(shelf: &Shelf, resource: &ResourceId) -> io::Result<Vec<PathBuf>> {
    let record = shelf.read(resource)?;
    let mut groups = record.sidecar().map(|sidecar| sidecar.cgroups.clone()).unwrap_or_default();
    let near = Hierarchies::of_this_process().unwrap_or_default();
    groups.extend(near.existing(&resource.object_name()));
    groups.sort_unstable();
    groups.dedup();
    Ok(groups)
}

/// Asks the workload to end, and waits until the tree has, or for so long.
fn stop_politely(resource: &ResourceId, timeout: Duration) -> io::Result<()> {
    let census = Census::take()?;
    let Some(roles) = Roles::of(&census.members(resource)) else { return Ok(()) };
    for process in &roles.workload {
        // One that may not be asked is killed later.
        let _ = tree::signal(process, Signal::TERM);
    }
    wait_for_holder(&roles, timeout)
}

/// Kills the workload alone, so that the holder can still tell how it ended.
fn kill_workload(resource: &ResourceId) -> io::Result<()> {
    let census = Census::take()?;
    let Some(roles) = Roles::of(&census.members(resource)) else { return Ok(()) };
    if let Some(leader) = roles.workload.first() {
        let _ = tree::signal(leader, Signal::KILL);
    }
    wait_for_holder(&roles, KILL_PATIENCE)
}

fn wait_for_holder(roles: &Roles, patience: Duration) -> io::Result<()> {
    if let Some(holder) = tree::handle_of(&roles.holder)? {
        tree::wait_for_all(&[holder], Instant::now() + patience)?;
    }
    Ok(())
}

fn release_directory(shelf: &Shelf, resource: &ResourceId, operation: &str) -> Result<Released> {
    let wrong = |error: io::Error| io_failure(operation, &error);
    if observe::directory(shelf, resource).map_err(wrong)?.is_none() {
        return Ok(Released::AlreadyGone);
    }
    if let Some(user) = observe::user_of(shelf, resource).map_err(wrong)? {
        let message = format!("process {} runs in it", user.name);
        return Err(failure(operation, ErrorClass::InUse, message));
    }
    directory::remove(shelf, resource).map_err(|error| match error {
        directory::Refusal::Mounted(point) => {
            let message = format!("something is mounted at {}", point.display());
            failure(operation, ErrorClass::InUse, message)
        }
        directory::Refusal::NotADirectory => {
            failure(operation, ErrorClass::Denied, "something else than a directory has the name")
        }
        directory::Refusal::System(error) => io_failure(operation, &error),
    })?;
    reach(Crashpoint::ReleaseSent);
    shelf.forget(resource).map_err(wrong)?;
    Ok(Released::Done)
}
