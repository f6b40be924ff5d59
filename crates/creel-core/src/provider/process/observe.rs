//! What is there: sidecars, trees and directories, read side by side.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use jiff::Timestamp;

use crate::id::ResourceId;
use crate::labels::{self, Labels};
use crate::os;
use crate::provider::{Identity, Kind, Observed, ProviderName};

use super::cgroup::Hierarchies;
use super::sidecar::{Record, Shelf, Sidecar, resource_of_object};
use super::tree::{Census, Seen, root_of};

/// Looks at everything of the given kinds that has a record or a directory here.
pub(super) fn list(shelf: &Shelf, kinds: &[Kind]) -> io::Result<Vec<Observed>> {
    let census = Census::take()?;
    let mut found = Vec::new();
    for resource in shelf.resources()? {
        if kinds.contains(&Kind::Process) {
            found.extend(process_in(shelf, &census, &resource)?);
        }
        if kinds.contains(&Kind::Directory) {
            found.extend(directory(shelf, &resource)?);
        }
    }
    Ok(found)
}

/// Returns a tree that runs in a directory. Only those that may are looked at.
pub(super) fn user_of(shelf: &Shelf, directory: &ResourceId) -> io::Result<Option<Observed>> {
    for resource in shelf.resources()? {
        let record = shelf.read(&resource)?;
        let used = record.sidecar().and_then(|sidecar| used_directory(shelf, sidecar));
        if used.as_ref() != Some(directory) {
            continue;
        }
        if let Some(tree) = process(shelf, &resource)?.filter(Observed::is_running) {
            return Ok(Some(tree));
        }
    }
    Ok(None)
}

/// Looks at one process tree; `None` when no trace of it is left.
pub(super) fn process(shelf: &Shelf, resource: &ResourceId) -> io::Result<Option<Observed>> {
    process_in(shelf, &Census::take()?, resource)
}

fn process_in(
    shelf: &Shelf,
    census: &Census,
    resource: &ResourceId,
) -> io::Result<Option<Observed>> {
    let record = shelf.read(resource)?;
    let members = census.members(resource);
    match &record {
        Record::Readable(sidecar) if sidecar.kind != Kind::Process => return Ok(None),
        Record::Readable(_) => {}
        Record::Unreadable if has_directory(shelf, resource) => return Ok(None),
        Record::Unreadable => {}
        Record::Absent => {
            let traced = shelf.is_half_written(resource) || has_group(resource);
            if members.is_empty() && !traced {
                return Ok(None);
            }
        }
    }
    let state = process_state(shelf, resource, &record, &members)?;
    // The holder names the tree, before and after its pid is recorded.
    let recorded = record.sidecar().and_then(|sidecar| sidecar.tree).map(|tree| tree.holder);
    let generation = match recorded.or_else(|| root_of(&members).map(|member| member.key)) {
        Some(key) => format!("{state} {}-{}", key.pid, key.started_ticks),
        None => state.to_owned(),
    };
    let uses = record.sidecar().and_then(|sidecar| used_directory(shelf, sidecar));
    Ok(Some(Observed {
        state: state.to_owned(),
        generation,
        uses: uses.into_iter().map(|used| (Kind::Directory, used.object_name())).collect(),
        ..outline(Kind::Process, resource, &record)
    }))
}

/// Names the state of a tree.
fn process_state(
    shelf: &Shelf,
    resource: &ResourceId,
    record: &Record,
    members: &[&Seen],
) -> io::Result<&'static str> {
    if *record == Record::Unreadable {
        return Ok("unreadable");
    }
    if !members.is_empty() {
        return Ok("running");
    }
    let Some(sidecar) = record.sidecar() else { return Ok("lost") };
    if shelf.read_ending(resource).is_some() {
        return Ok("exited");
    }
    let is_visible =
        sidecar.boot != os::boot_id()? || sidecar.pid_namespace == os::pid_namespace()?;
    Ok(if is_visible { "lost" } else { "unknown" })
}

/// Looks at one directory; `None` when no trace of it is left.
pub(super) fn directory(shelf: &Shelf, resource: &ResourceId) -> io::Result<Option<Observed>> {
    let record = shelf.read(resource)?;
    let there = directory_there(shelf, resource)?;
    let inode = there.as_ref().map(|found| format!("{}:{}", found.dev(), found.ino()));
    let state = match (&record, &inode) {
        (Record::Readable(sidecar), _) if sidecar.kind != Kind::Directory => return Ok(None),
        (Record::Absent, None) if shelf.is_half_written(resource) => "lost",
        (Record::Absent | Record::Unreadable, None) => return Ok(None),
        (Record::Unreadable, Some(_)) => "unreadable",
        (_, Some(_)) => "present",
        (_, None) => "lost",
    };
    Ok(Some(Observed {
        state: state.to_owned(),
        generation: inode.unwrap_or_else(|| state.to_owned()),
        identity: Some(there.as_ref().map_or(Identity::Traces, directory_identity)),
        ..outline(Kind::Directory, resource, &record)
    }))
}

/// Returns what tells a directory from one that was made again in its place.
fn directory_identity(found: &fs::Metadata) -> Identity {
    let born_at = found.created().ok().and_then(|at| Timestamp::try_from(at).ok());
    Identity::Directory { device: found.dev(), inode: found.ino(), born_at }
}

/// Looks at the directory itself, also while it is being removed.
fn directory_there(shelf: &Shelf, resource: &ResourceId) -> io::Result<Option<fs::Metadata>> {
    for path in [shelf.directory(resource), shelf.removing_directory(resource)] {
        match fs::symlink_metadata(path) {
            Ok(found) => return Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn has_directory(shelf: &Shelf, resource: &ResourceId) -> bool {
    !matches!(directory_there(shelf, resource), Ok(None))
}

fn has_group(resource: &ResourceId) -> bool {
    let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
    !hierarchies.existing(&resource.object_name()).is_empty()
}

/// Returns the directory resource that a workload started in.
pub(super) fn used_directory(shelf: &Shelf, sidecar: &Sidecar) -> Option<ResourceId> {
    let asked = sidecar.directory.as_ref()?;
    let real = fs::canonicalize(asked).unwrap_or_else(|_| asked.clone());
    let below = real.strip_prefix(shelf.root()).ok()?;
    resource_of_object(below.components().next()?.as_os_str().to_str()?)
}

/// Returns what the record alone tells.
fn outline(kind: Kind, resource: &ResourceId, record: &Record) -> Observed {
    let id = resource.object_name();
    let (name, labels, created_at) = match record {
        Record::Readable(sidecar) => {
            (sidecar.name.clone(), sidecar.labels.clone(), Some(sidecar.created_at))
        }
        Record::Unreadable => (id.clone(), Labels::new(), None),
        // Without a record the name or the marker still says which resource it is.
        Record::Absent => {
            let label = (labels::RESOURCE.to_owned(), resource.to_string());
            (id.clone(), Labels::from([label]), None)
        }
    };
    Observed { name, created_at, labels, ..Observed::known_by_id(ProviderName::Process, kind, id) }
}
