//! What is there: sidecars, trees and directories, read side by side.

use std::fs;
use std::io;

use crate::id::ResourceId;
use crate::labels::{self, Labels};
use crate::os;
use crate::provider::{Identity, Kind, Observed, ProviderName};

use super::inode::Inode;
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
    let members = census.members(resource, record.groups());
    match &record {
        Record::Readable(sidecar) if sidecar.kind != Kind::Process => return Ok(None),
        Record::Readable(_) => {}
        Record::Unreadable if has_directory(shelf, resource) => return Ok(None),
        Record::Unreadable => {}
        Record::Absent => {
            if members.is_empty() && !shelf.is_half_written(resource) {
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
///
/// A directory that took the place of the one on record is not shown: only the traces of ours
/// are, and with their release it is told that somebody else's was kept.
pub(super) fn directory(shelf: &Shelf, resource: &ResourceId) -> io::Result<Option<Observed>> {
    let record = shelf.read(resource)?;
    let recorded = record.sidecar().and_then(|sidecar| sidecar.inode);
    let found = found_directory(shelf, resource, recorded.as_ref())?;
    let is_ours = found.is_some() && found == recorded;
    let is_unfinished = Inode::at(&shelf.making_directory(resource))?.is_some();
    let state = match (&record, &found) {
        (Record::Readable(sidecar), _) if sidecar.kind != Kind::Directory => return Ok(None),
        (Record::Readable(_), Some(_)) if is_ours || recorded.is_none() => "present",
        (Record::Readable(_), Some(_)) => "replaced",
        (Record::Readable(_), None) => "lost",
        (Record::Unreadable, Some(_)) => "unreadable",
        (Record::Absent, Some(_)) => "unrecorded",
        (_, None) if is_unfinished || shelf.is_half_written(resource) => "lost",
        (_, None) => return Ok(None),
    };
    Ok(Some(Observed {
        state: state.to_owned(),
        generation: found.map_or_else(|| state.to_owned(), |inode| inode.to_string()),
        // One that took the place of ours says nothing of ours but that it is gone.
        identity: Some(match found {
            Some(inode) if is_ours || recorded.is_none() => inode.into(),
            Some(_) | None => Identity::Traces,
        }),
        ..outline(Kind::Directory, resource, &record)
    }))
}

/// Returns which directory has the resource's name, also while it is being removed: the one on
/// record where it has one of the two names, otherwise the one that has it.
fn found_directory(
    shelf: &Shelf,
    resource: &ResourceId,
    recorded: Option<&Inode>,
) -> io::Result<Option<Inode>> {
    let mut found = Vec::new();
    for path in [
        shelf.directory(resource),
        shelf.removing_directory(resource),
        shelf.making_directory(resource),
    ] {
        found.extend(Inode::at(&path)?);
    }
    let own = found.iter().find(|one| Some(*one) == recorded);
    if own.is_some() {
        return Ok(own.copied());
    }
    // One in the making has nothing in it that could be anybody's.
    let unfinished = Inode::at(&shelf.making_directory(resource))?;
    Ok(found.into_iter().find(|one| Some(*one) != unfinished))
}

fn has_directory(shelf: &Shelf, resource: &ResourceId) -> bool {
    !matches!(found_directory(shelf, resource, None), Ok(None))
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
