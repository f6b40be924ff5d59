//! Making directories and process trees.
//!
//! The record comes first, then the control groups, then the tree, then the
//! record of its pids. A crash after any step leaves something that the
//! record, the marker or the name gives away; a failure undoes the steps.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::io::Errno;

use crate::crashpoint::{Crashpoint, reach};
use crate::provider::{CreateOrder, ErrorClass, ProcessSpec, Result, Spec};

use super::cgroup::{Hierarchies, PlannedGroup};
use super::channel::{
    Channel, Containment, Heard, HolderOrder, Report, Role, TreeRecord, Workload,
};
use super::group::GroupRecord;
use super::inode::Inode;
use super::release::{KILL_PATIENCE, release_directory};
use super::sidecar::{Shelf, Sidecar, resource_of_object};
use super::world::{World, failure, io_failure};
use super::{beneath, disk, holder, lease, observe, tree};

/// How long a holder may take to answer: longer than it waits for its init.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

impl World {
    /// Makes what is ordered; returns its id.
    pub(super) fn create(&self, order: &CreateOrder) -> Result<String> {
        self.reap_holders();
        let operation = format!("create {} {}", order.spec.kind(), order.name);
        let shelf = Shelf::make(&self.settings.root).map_err(|e| io_failure(&operation, &e))?;
        match &order.spec {
            Spec::Directory => {
                create_directory(&shelf, order).map_err(|error| io_failure(&operation, &error))?;
            }
            Spec::Disk { bytes } => create_disk(&shelf, order, *bytes, &operation)?,
            Spec::Process(spec) => self.create_process(&shelf, order, spec, &operation)?,
            Spec::Container(_) | Spec::Network(_) | Spec::Volume(_) | Spec::Sandbox(_) => {
                let message = format!("there is no {} in this world", order.spec.kind());
                return Err(failure(&operation, ErrorClass::Invalid, message));
            }
        }
        Ok(order.resource.object_name())
    }

    fn create_process(
        &self,
        shelf: &Shelf,
        order: &CreateOrder,
        spec: &ProcessSpec,
        operation: &str,
    ) -> Result<()> {
        check(spec).map_err(|message| failure(operation, ErrorClass::Invalid, message))?;
        let wrong = |error: io::Error| io_failure(operation, &error);
        match observe::process(shelf, &order.resource).map_err(wrong)? {
            // The same create came before, and its answer was lost.
            Some(seen) if matches!(seen.state.as_str(), "running" | "exited") => return Ok(()),
            // The same create was cut off half-way.
            Some(_) => {
                self.end_tree(shelf, &order.resource, operation)?;
                shelf.forget(&order.resource).map_err(wrong)?;
            }
            None => {}
        }
        let name = order.resource.object_name();
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let (planned, limits_missing) = hierarchies.plan(&name, &spec.limits);
        let mut sidecar = Sidecar::of_order(order).map_err(wrong)?;
        sidecar.cgroups = planned.iter().map(PlannedGroup::record).collect();
        sidecar.limits_missing = limits_missing;
        shelf.write(&sidecar).map_err(wrong)?;
        let raised = self.raise(shelf, &mut sidecar, &planned, spec, operation);
        if raised.is_err() {
            self.undo(shelf, &sidecar);
        }
        raised
    }

    /// Starts a tree again that was stopped or has ended, under the record and with the limits it
    /// has; one that runs is fine.
    pub(super) fn restart(&self, id: &str, spec: &ProcessSpec) -> Result<()> {
        self.reap_holders();
        let operation = format!("start process {id}");
        let wrong = |error: io::Error| io_failure(&operation, &error);
        check(spec).map_err(|message| failure(&operation, ErrorClass::Invalid, message))?;
        let gone = || failure(&operation, ErrorClass::Gone, "there is no such process tree");
        let resource = resource_of_object(id).ok_or_else(gone)?;
        let shelf = self.shelf(&operation)?;
        let seen = observe::process(&shelf, &resource).map_err(wrong)?.ok_or_else(gone)?;
        if seen.is_running() {
            return Ok(());
        }
        let record = shelf.read(&resource).map_err(wrong)?;
        let mut sidecar = record.sidecar().cloned().ok_or_else(gone)?;
        self.end_tree(&shelf, &resource, &operation)?;
        mount_disk_again(&shelf, &sidecar).map_err(wrong)?;
        shelf.forget_ending(&resource).map_err(wrong)?;
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let (planned, limits_missing) = hierarchies.plan(&resource.object_name(), &sidecar.limits);
        sidecar.cgroups = planned.iter().map(PlannedGroup::record).collect();
        (sidecar.limits_missing, sidecar.tree) = (limits_missing, None);
        shelf.write(&sidecar).map_err(wrong)?;
        self.raise(&shelf, &mut sidecar, &planned, spec, &operation)
    }

    /// Brings a recorded tree into being.
    fn raise(
        &self,
        shelf: &Shelf,
        sidecar: &mut Sidecar,
        planned: &[PlannedGroup],
        spec: &ProcessSpec,
        operation: &str,
    ) -> Result<()> {
        let wrong = |error: io::Error| io_failure(operation, &error);
        sidecar.cgroups = make_groups(planned, &mut sidecar.limits_missing);
        shelf.write(sidecar).map_err(wrong)?;
        lease::renew(&shelf.lease_file(&sidecar.resource)).map_err(wrong)?;
        let order = self.holder_order(shelf, sidecar, spec);
        let (tree, not_joined) = self.start_tree(order, operation)?;
        reach(Crashpoint::CreateSent);
        let outside = planned.iter().filter(|group| not_joined.contains(&group.path));
        sidecar.limits_missing.extend(outside.flat_map(PlannedGroup::limits));
        sidecar.limits_missing.sort_unstable();
        sidecar.limits_missing.dedup();
        sidecar.tree = Some(tree);
        shelf.write(sidecar).map_err(wrong)?;
        if !sidecar.limits_missing.is_empty() {
            let limits = sidecar.limits_missing.join(", ");
            tracing::warn!(resource_id = %sidecar.resource, limits, "limits are not enforced");
        }
        Ok(())
    }

    fn holder_order(&self, shelf: &Shelf, sidecar: &Sidecar, spec: &ProcessSpec) -> HolderOrder {
        let resource = sidecar.resource;
        let directory = spec.directory.clone().unwrap_or_else(|| PathBuf::from("/"));
        HolderOrder {
            role: Role::Hold,
            resource,
            program: self.settings.holder.clone(),
            containment: Containment::Subreaper,
            cgroups: sidecar.cgroups.clone(),
            workload: Some(Workload {
                command: spec.command.clone(),
                env: holder::environment_of(&resource, &directory, &spec.env),
                directory,
                log: shelf.log_file(&resource),
            }),
            lease: sidecar.lease,
            lease_file: shelf.lease_file(&resource),
            ending_file: shelf.ending_file(&resource),
        }
    }

    /// Starts a holder with the best containment that works here.
    fn start_tree(
        &self,
        order: HolderOrder,
        operation: &str,
    ) -> Result<(TreeRecord, Vec<PathBuf>)> {
        let mut last_reason = String::new();
        for containment in self.candidates() {
            let order = HolderOrder { containment, ..order.clone() };
            match self.ask_holder(&order).map_err(|error| io_failure(operation, &error))? {
                Report::Started { tree, not_joined } => return Ok((tree, not_joined)),
                Report::Refused { reason, class } => return Err(failure(operation, class, reason)),
                Report::Unavailable { reason } => {
                    last_reason = format!("{}: {reason}", containment.name());
                    self.note_refusal(containment, reason);
                }
                Report::Spawned { .. } | Report::Ended(_) => {
                    let message = "the holder answered out of turn";
                    return Err(failure(operation, ErrorClass::Transient, message));
                }
            }
        }
        let message = format!("no containment is available ({last_reason})");
        Err(failure(operation, ErrorClass::Denied, message))
    }

    /// Starts a holder and waits for its answer.
    pub(super) fn ask_holder(&self, order: &HolderOrder) -> io::Result<Report> {
        let (child, mut channel): (_, Channel) = holder::start(&self.settings.holder, order)?;
        self.adopt(child);
        match channel.receive(Some(ANSWER_PATIENCE))? {
            Heard::Message(report) => Ok(report),
            Heard::Silence => Err(io::Error::other("the holder did not answer in time")),
            Heard::End => Err(io::Error::other("the holder ended without an answer")),
        }
    }

    /// Takes back a create that failed half-way.
    fn undo(&self, shelf: &Shelf, sidecar: &Sidecar) {
        let resource = &sidecar.resource;
        let undone = tree::end(resource, &sidecar.cgroups, Instant::now() + KILL_PATIENCE)
            .map_err(io::Error::other)
            .and_then(|()| sidecar.cgroups.iter().try_for_each(|one| one.remove(resource)))
            .and_then(|()| shelf.forget(resource));
        self.reap_holders();
        if let Err(error) = undone {
            tracing::warn!(resource_id = %resource, %error, "a failed create could not be undone");
        }
    }
}

fn check(spec: &ProcessSpec) -> std::result::Result<(), String> {
    if spec.command.is_empty() {
        return Err("the command is empty".to_owned());
    }
    if spec.directory.as_ref().is_some_and(|directory| !directory.is_absolute()) {
        return Err("the directory must be an absolute path".to_owned());
    }
    let has_nul = |text: &String| text.contains('\0');
    if spec.command.iter().any(has_nul) || spec.env.values().any(has_nul) {
        return Err("a zero byte is in the command or the environment".to_owned());
    }
    if spec.env.keys().any(|key| key.is_empty() || key.contains(['=', '\0'])) {
        return Err("a variable of the environment has an impossible name".to_owned());
    }
    Ok(())
}

/// Makes the planned groups; those that cannot be made add to the missing limits.
fn make_groups(planned: &[PlannedGroup], limits_missing: &mut Vec<String>) -> Vec<GroupRecord> {
    let mut made = Vec::new();
    for group in planned {
        match group.make() {
            Ok((group, missing)) => {
                limits_missing.extend(missing);
                made.push(group);
            }
            Err(error) => {
                tracing::debug!(path = %group.path.display(), %error, "control group refused");
                limits_missing.extend(group.limits());
            }
        }
    }
    made
}

fn create_directory(shelf: &Shelf, order: &CreateOrder) -> io::Result<()> {
    if is_made(shelf, order)? {
        return Ok(());
    }
    make_directory(shelf, order)?;
    reach(Crashpoint::CreateSent);
    Ok(())
}

/// Makes a directory under a private name, records which one it is, and gives it its name.
fn make_directory(shelf: &Shelf, order: &CreateOrder) -> io::Result<()> {
    let (path, private) =
        (shelf.directory(&order.resource), shelf.making_directory(&order.resource));
    match DirBuilder::new().mode(0o700).create(&private) {
        // An earlier try of the same create was cut off here; it had nothing in it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(&private)?;
            DirBuilder::new().mode(0o700).create(&private)?;
        }
        other => other?,
    }
    reach(Crashpoint::DirectoryUnnamed);
    let named = Sidecar::of_order(order).and_then(|mut sidecar| {
        sidecar.inode = Inode::at(&private)?;
        shelf.write(&sidecar)?;
        beneath::rename_into_free(CWD, &private, CWD, &path)
            .map_err(|error| name_is_taken(error, &path))
    });
    if let Err(error) = named {
        // It is empty and has a name of its own: nothing else can be meant.
        let _ = fs::remove_dir(&private);
        shelf.forget(&order.resource)?;
        return Err(error);
    }
    Ok(())
}

/// Makes a directory with a disk; one that cannot be had is removed again.
fn create_disk(shelf: &Shelf, order: &CreateOrder, bytes: u64, operation: &str) -> Result<()> {
    let wrong = |error: io::Error| io_failure(operation, &error);
    if let Some(reason) = disk::disk_refusal() {
        return Err(failure(operation, ErrorClass::Denied, reason));
    }
    if bytes < disk::SMALLEST_DISK {
        let message = format!("a disk needs at least {} MiB", disk::SMALLEST_DISK >> 20);
        return Err(failure(operation, ErrorClass::Invalid, message));
    }
    let path = shelf.directory(&order.resource);
    if is_made(shelf, order).map_err(wrong)? {
        // The same create came before. One that was cut off begins anew: it has no use yet.
        if disk::is_mounted(&path).map_err(wrong)? {
            return Ok(());
        }
        let _ = release_directory(shelf, &order.resource, None, operation)?;
    }
    make_directory(shelf, order).map_err(wrong)?;
    if let Err(error) = disk::make(&path, bytes) {
        if let Err(left) = release_directory(shelf, &order.resource, None, operation) {
            tracing::warn!(resource_id = %order.resource, error = %left, "a failed create could \
                not be undone");
        }
        return Err(wrong(error));
    }
    reach(Crashpoint::CreateSent);
    Ok(())
}

/// Mounts the disk that a tree runs on, which a restart of the machine has unmounted.
fn mount_disk_again(shelf: &Shelf, sidecar: &Sidecar) -> io::Result<()> {
    let Some(directory) = observe::used_directory(shelf, sidecar) else { return Ok(()) };
    let record = shelf.read(&directory)?;
    let is_disk = record.sidecar().is_some_and(|sidecar| sidecar.disk.is_some());
    if is_disk { disk::ensure_mounted(&shelf.directory(&directory)) } else { Ok(()) }
}

fn name_is_taken(error: Errno, path: &Path) -> io::Error {
    match error {
        Errno::EXIST | Errno::NOTEMPTY => io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("something else has the name {}", path.display()),
        ),
        other => other.into(),
    }
}

/// Returns whether an earlier try of the same create made the directory.
fn is_made(shelf: &Shelf, order: &CreateOrder) -> io::Result<bool> {
    let record = shelf.read(&order.resource)?;
    let recorded = record.sidecar().and_then(|sidecar| sidecar.inode);
    Ok(recorded.is_some() && recorded == Inode::at(&shelf.directory(&order.resource))?)
}
