//! Creates directories and process trees.
//!
//! The record comes first, then the control groups, then the tree, then the record of its pids.
//! After a crash at any step, the rest is found by the record, the marker or the name. A failure
//! undoes the steps.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use creel_model::crashpoint::{Crashpoint, reach};
use creel_model::provider::{CreateRequest, ErrorClass, Kind, ProcessSpec, Result, Spec};
use rustix::fs::CWD;
use rustix::io::Errno;

use super::cgroup::{GroupRecord, Hierarchies, PlannedGroup};
use super::channel::{Channel, HolderReport, HolderRequest, Received, Role, Workload};
use super::inode::Inode;
use super::release::{KILL_PATIENCE, release_directory};
use super::sidecar::{Sidecar, SidecarDirectory};
use super::state::{ProviderState, checked, failure, io_failure};
use super::tree_record::{Containment, TreeRecord};
use super::{beneath, disk, holder, lease, observe, tree};

/// How long a holder may take to respond: longer than it waits for its init.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

impl ProviderState {
    /// Creates the requested object; returns its id.
    pub(super) fn create(&self, request: &CreateRequest) -> Result<String> {
        self.reap_holders();
        let operation = format!("create {} {}", request.spec.kind(), request.name);
        let records =
            SidecarDirectory::make(&self.settings.root).map_err(|e| io_failure(&operation, &e))?;
        match &request.spec {
            Spec::Directory => {
                create_directory(&records, request)
                    .map_err(|error| io_failure(&operation, &error))?;
            }
            Spec::Disk { bytes } => create_disk(&records, request, *bytes, &operation)?,
            Spec::Process(spec) => self.create_process(&records, request, spec, &operation)?,
            Spec::Container(_) | Spec::Network(_) | Spec::Volume(_) | Spec::Sandbox(_) => {
                let message = format!("this provider has no {}", request.spec.kind());
                return Err(failure(&operation, ErrorClass::Invalid, message));
            }
        }
        Ok(request.resource.object_name())
    }

    fn create_process(
        &self,
        records: &SidecarDirectory,
        request: &CreateRequest,
        spec: &ProcessSpec,
        operation: &str,
    ) -> Result<()> {
        check(spec).map_err(|message| failure(operation, ErrorClass::Invalid, message))?;
        let wrong = |error: io::Error| io_failure(operation, &error);
        match observe::process(records, &request.resource).map_err(wrong)? {
            // The same create came before, and its response was lost.
            Some(seen) if matches!(seen.state.as_str(), "running" | "exited") => return Ok(()),
            // The same create was interrupted halfway.
            Some(_) => {
                self.end_tree(records, &request.resource, operation)?;
                records.forget(&request.resource).map_err(wrong)?;
            }
            None => {}
        }
        let name = request.resource.object_name();
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let (planned, limits_missing) = hierarchies.plan(&name, &spec.limits);
        let mut sidecar = Sidecar::of_request(request).map_err(wrong)?;
        sidecar.cgroups = planned.iter().map(PlannedGroup::record).collect();
        sidecar.limits_missing = limits_missing;
        records.write(&sidecar).map_err(wrong)?;
        let raised = self.raise(records, &mut sidecar, &planned, spec, operation);
        if raised.is_err() {
            self.undo(records, &sidecar);
        }
        raised
    }

    /// Restarts a tree that was stopped or has ended, under its record and with its limits.
    ///
    /// A tree that already runs is left as it is.
    pub(super) fn restart(&self, id: &str, spec: &ProcessSpec) -> Result<()> {
        self.reap_holders();
        let operation = format!("start process {id}");
        let wrong = |error: io::Error| io_failure(&operation, &error);
        check(spec).map_err(|message| failure(&operation, ErrorClass::Invalid, message))?;
        let gone = || failure(&operation, ErrorClass::Gone, "there is no such process tree");
        let resource = checked(Kind::Process, id, &operation)?;
        let records = self.records(&operation)?;
        let seen = observe::process(&records, &resource).map_err(wrong)?.ok_or_else(gone)?;
        if seen.is_running() {
            return Ok(());
        }
        let record = records.read(&resource).map_err(wrong)?;
        let mut sidecar = record.sidecar().cloned().ok_or_else(gone)?;
        self.end_tree(&records, &resource, &operation)?;
        mount_disk_again(&records, &sidecar).map_err(wrong)?;
        records.forget_ending(&resource).map_err(wrong)?;
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let (planned, limits_missing) = hierarchies.plan(&resource.object_name(), &sidecar.limits);
        sidecar.cgroups = planned.iter().map(PlannedGroup::record).collect();
        (sidecar.limits_missing, sidecar.tree) = (limits_missing, None);
        records.write(&sidecar).map_err(wrong)?;
        self.raise(&records, &mut sidecar, &planned, spec, &operation)
    }

    /// Starts a recorded tree.
    fn raise(
        &self,
        records: &SidecarDirectory,
        sidecar: &mut Sidecar,
        planned: &[PlannedGroup],
        spec: &ProcessSpec,
        operation: &str,
    ) -> Result<()> {
        let wrong = |error: io::Error| io_failure(operation, &error);
        sidecar.cgroups = make_groups(planned, &mut sidecar.limits_missing);
        records.write(sidecar).map_err(wrong)?;
        lease::renew(&records.lease_file(&sidecar.resource)).map_err(wrong)?;
        let request = self.holder_request(records, sidecar, spec);
        let (tree, not_joined) = self.start_tree(request, operation)?;
        reach(Crashpoint::CreateSent);
        let outside = planned.iter().filter(|group| not_joined.contains(&group.path));
        sidecar.limits_missing.extend(outside.flat_map(PlannedGroup::limits));
        sidecar.limits_missing.sort_unstable();
        sidecar.limits_missing.dedup();
        sidecar.tree = Some(tree);
        records.write(sidecar).map_err(wrong)?;
        if !sidecar.limits_missing.is_empty() {
            let limits = sidecar.limits_missing.join(", ");
            tracing::warn!(resource_id = %sidecar.resource, limits, "limits are not enforced");
        }
        Ok(())
    }

    fn holder_request(
        &self,
        records: &SidecarDirectory,
        sidecar: &Sidecar,
        spec: &ProcessSpec,
    ) -> HolderRequest {
        let resource = sidecar.resource;
        let directory = spec.directory.clone().unwrap_or_else(|| PathBuf::from("/"));
        HolderRequest {
            role: Role::Hold,
            resource,
            program: self.settings.holder.clone(),
            containment: Containment::Subreaper,
            cgroups: sidecar.cgroups.clone(),
            workload: Some(Workload {
                command: spec.command.clone(),
                env: holder::environment_of(&resource, &directory, &spec.env),
                directory,
                log: records.log_file(&resource),
            }),
            lease: sidecar.lease,
            lease_file: records.lease_file(&resource),
            ending_file: records.ending_file(&resource),
        }
    }

    /// Starts a holder with the best containment that works here.
    fn start_tree(
        &self,
        request: HolderRequest,
        operation: &str,
    ) -> Result<(TreeRecord, Vec<PathBuf>)> {
        let mut last_reason = String::new();
        for containment in self.candidates() {
            let request = HolderRequest { containment, ..request.clone() };
            match self.run_holder(&request).map_err(|error| io_failure(operation, &error))? {
                HolderReport::Started { tree, not_joined } => return Ok((tree, not_joined)),
                HolderReport::Refused { reason, class } => {
                    return Err(failure(operation, class, reason));
                }
                HolderReport::Unavailable { reason } => {
                    last_reason = format!("{}: {reason}", containment.name());
                    self.note_refusal(containment, reason);
                }
                HolderReport::Spawned { .. } | HolderReport::Ended(_) => {
                    let message = "the holder answered out of turn";
                    return Err(failure(operation, ErrorClass::Transient, message));
                }
            }
        }
        let message = format!("no containment is available ({last_reason})");
        Err(failure(operation, ErrorClass::Denied, message))
    }

    /// Starts a holder and waits for its response.
    pub(super) fn run_holder(&self, request: &HolderRequest) -> io::Result<HolderReport> {
        let (child, mut channel): (_, Channel) = holder::start(&self.settings.holder, request)?;
        self.adopt(child);
        match channel.receive(Some(RESPONSE_TIMEOUT))? {
            Received::Message(report) => Ok(report),
            Received::Silence => Err(io::Error::other("the holder did not answer in time")),
            Received::End => Err(io::Error::other("the holder ended without an answer")),
        }
    }

    /// Undoes a create that failed halfway.
    fn undo(&self, records: &SidecarDirectory, sidecar: &Sidecar) {
        let resource = &sidecar.resource;
        let undone = tree::end(resource, &sidecar.cgroups, Instant::now() + KILL_PATIENCE)
            .map_err(io::Error::other)
            .and_then(|()| sidecar.cgroups.iter().try_for_each(|one| one.remove(resource)))
            .and_then(|()| records.forget(resource));
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
    if let Some(mistake) = spec.limits.mistake() {
        return Err(mistake);
    }
    Ok(())
}

/// Creates the planned groups; those that cannot be created add to the missing limits.
fn make_groups(planned: &[PlannedGroup], limits_missing: &mut Vec<String>) -> Vec<GroupRecord> {
    let mut created = Vec::new();
    for group in planned {
        match group.make() {
            Ok((group, missing)) => {
                limits_missing.extend(missing);
                created.push(group);
            }
            Err(error) => {
                tracing::debug!(path = %group.path.display(), %error, "control group refused");
                limits_missing.extend(group.limits());
            }
        }
    }
    created
}

fn create_directory(records: &SidecarDirectory, request: &CreateRequest) -> io::Result<()> {
    if is_created(records, request)? {
        return Ok(());
    }
    make_directory(records, request)?;
    reach(Crashpoint::CreateSent);
    Ok(())
}

/// Creates a directory under a private name, records its identity, and gives it its final name.
fn make_directory(records: &SidecarDirectory, request: &CreateRequest) -> io::Result<()> {
    let (path, private) =
        (records.directory(&request.resource), records.making_directory(&request.resource));
    match DirBuilder::new().mode(0o700).create(&private) {
        // An earlier attempt of the same create was interrupted here; the directory is empty.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(&private)?;
            DirBuilder::new().mode(0o700).create(&private)?;
        }
        other => other?,
    }
    reach(Crashpoint::DirectoryUnnamed);
    let result = Sidecar::of_request(request).and_then(|mut sidecar| {
        sidecar.inode = Inode::at(&private)?;
        records.write(&sidecar)?;
        beneath::rename_into_free(CWD, &private, CWD, &path)
            .map_err(|error| explain_rename(error, &path))
    });
    if let Err(error) = result {
        // It is empty and its name is private, so it cannot be another directory.
        let _ = fs::remove_dir(&private);
        records.forget(&request.resource)?;
        return Err(error);
    }
    Ok(())
}

/// Creates a directory with a disk; the directory is removed again if the disk fails.
fn create_disk(
    records: &SidecarDirectory,
    request: &CreateRequest,
    bytes: u64,
    operation: &str,
) -> Result<()> {
    let wrong = |error: io::Error| io_failure(operation, &error);
    if let Some(reason) = disk::disk_refusal() {
        return Err(failure(operation, ErrorClass::Denied, reason));
    }
    if bytes < disk::SMALLEST_DISK {
        let message = format!("a disk needs at least {} MiB", disk::SMALLEST_DISK >> 20);
        return Err(failure(operation, ErrorClass::Invalid, message));
    }
    let path = records.directory(&request.resource);
    if is_created(records, request).map_err(wrong)? {
        // The same create came before. An interrupted one starts over: the disk is not in use yet.
        if disk::is_mounted(&path).map_err(wrong)? {
            return Ok(());
        }
        let _ = release_directory(records, &request.resource, None, operation)?;
    }
    make_directory(records, request).map_err(wrong)?;
    if let Err(error) = disk::make(&path, bytes) {
        if let Err(left) = release_directory(records, &request.resource, None, operation) {
            tracing::warn!(resource_id = %request.resource, error = %left, "a failed create could \
                not be undone");
        }
        return Err(wrong(error));
    }
    reach(Crashpoint::CreateSent);
    Ok(())
}

/// Mounts the disk that a tree runs on, which a reboot has unmounted.
fn mount_disk_again(records: &SidecarDirectory, sidecar: &Sidecar) -> io::Result<()> {
    let Some(directory) = observe::used_directory(records, sidecar) else { return Ok(()) };
    let record = records.read(&directory)?;
    let is_disk = record.sidecar().is_some_and(|sidecar| sidecar.disk.is_some());
    if is_disk { disk::ensure_mounted(&records.directory(&directory)) } else { Ok(()) }
}

fn explain_rename(error: Errno, path: &Path) -> io::Error {
    match error {
        Errno::EXIST | Errno::NOTEMPTY => io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("something else has the name {}", path.display()),
        ),
        other => other.into(),
    }
}

/// Returns whether an earlier attempt of the same create made the directory.
fn is_created(records: &SidecarDirectory, request: &CreateRequest) -> io::Result<bool> {
    let record = records.read(&request.resource)?;
    let recorded = record.sidecar().and_then(|sidecar| sidecar.inode.as_ref());
    let seen = Inode::at(&records.directory(&request.resource))?;
    Ok(recorded.zip(seen).is_some_and(|(recorded, seen)| recorded.matches(&seen)))
}
