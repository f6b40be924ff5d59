//! Observes sidecars, trees and directories together.

use std::fs;
use std::io;

use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::os;
use creel_model::provider::{Activity, Identity, Kind, Observed};

use super::inode::Inode;
use super::sidecar::{Sidecar, SidecarDirectory, SidecarRecord};
use super::tree::{ProcessCensus, Seen, root_of};

/// Lists everything of the given kinds that has a record or a directory here.
pub(super) fn list(records: &SidecarDirectory, kinds: &[Kind]) -> io::Result<Vec<Observed>> {
    let census = ProcessCensus::take()?;
    let mut found = Vec::new();
    for resource in records.resources()? {
        if kinds.contains(&Kind::Process) {
            found.extend(process_in(records, &census, &resource)?);
        }
        if kinds.contains(&Kind::Directory) {
            found.extend(directory(records, &resource)?);
        }
    }
    Ok(found)
}

/// Returns a running tree that uses a directory; inspects only trees that started in it.
pub(super) fn user_of(
    records: &SidecarDirectory,
    directory: &ResourceId,
) -> io::Result<Option<Observed>> {
    for resource in records.resources()? {
        let record = records.read(&resource)?;
        let used = record.sidecar().and_then(|sidecar| used_directory(records, sidecar));
        if used.as_ref() != Some(directory) {
            continue;
        }
        if let Some(tree) = process(records, &resource)?.filter(Observed::is_running) {
            return Ok(Some(tree));
        }
    }
    Ok(None)
}

/// Inspects one process tree; `None` when no trace of it is left.
pub(super) fn process(
    records: &SidecarDirectory,
    resource: &ResourceId,
) -> io::Result<Option<Observed>> {
    process_in(records, &ProcessCensus::take()?, resource)
}

fn process_in(
    records: &SidecarDirectory,
    census: &ProcessCensus,
    resource: &ResourceId,
) -> io::Result<Option<Observed>> {
    let record = records.read(resource)?;
    let members = census.members(resource, record.groups());
    match &record {
        SidecarRecord::Readable(sidecar) if sidecar.kind != Kind::Process => return Ok(None),
        SidecarRecord::Readable(_) => {}
        SidecarRecord::Unreadable if has_directory(records, resource) => return Ok(None),
        SidecarRecord::Unreadable => {}
        SidecarRecord::Absent => {
            if members.is_empty() && !records.is_half_written(resource) {
                return Ok(None);
            }
        }
    }
    let state = process_state(records, resource, &record, &members)?;
    // The holder identifies the tree, before and after its pid is recorded.
    let recorded = record.sidecar().and_then(|sidecar| sidecar.tree).map(|tree| tree.holder);
    let generation = match recorded.or_else(|| root_of(&members).map(|member| member.key)) {
        Some(key) => format!("{state} {}-{}", key.pid, key.started_ticks),
        None => state.to_owned(),
    };
    let uses = record.sidecar().and_then(|sidecar| used_directory(records, sidecar));
    Ok(Some(Observed {
        activity: Activity::of(state == "running"),
        state: state.to_owned(),
        generation,
        uses: uses.into_iter().map(|used| (Kind::Directory, used.object_name())).collect(),
        ..outline(Kind::Process, resource, &record)
    }))
}

/// Returns the state of a tree.
fn process_state(
    records: &SidecarDirectory,
    resource: &ResourceId,
    record: &SidecarRecord,
    members: &[&Seen],
) -> io::Result<&'static str> {
    if *record == SidecarRecord::Unreadable {
        return Ok("unreadable");
    }
    if !members.is_empty() {
        return Ok("running");
    }
    let Some(sidecar) = record.sidecar() else { return Ok("lost") };
    if records.read_ending(resource).is_some() {
        return Ok("exited");
    }
    let is_visible =
        sidecar.boot != os::boot_id()? || sidecar.pid_namespace == os::pid_namespace()?;
    Ok(if is_visible { "lost" } else { "unknown" })
}

/// Inspects one directory; `None` when no trace of it is left.
///
/// A directory that replaced the recorded one is not shown. Only the traces of ours are, and their
/// release reports that a foreign directory was kept.
pub(super) fn directory(
    records: &SidecarDirectory,
    resource: &ResourceId,
) -> io::Result<Option<Observed>> {
    let record = records.read(resource)?;
    let recorded = record.sidecar().and_then(|sidecar| sidecar.inode.as_ref());
    let found = found_directory(records, resource, recorded)?;
    let is_ours = recorded.zip(found.as_ref()).is_some_and(|(ours, seen)| ours.matches(seen));
    let is_unfinished = Inode::at(&records.making_directory(resource))?.is_some();
    let state = match (&record, &found) {
        (SidecarRecord::Readable(sidecar), _) if sidecar.kind != Kind::Directory => {
            return Ok(None);
        }
        (SidecarRecord::Readable(_), Some(_)) if is_ours || recorded.is_none() => "present",
        (SidecarRecord::Readable(_), Some(_)) => "replaced",
        (SidecarRecord::Readable(_), None) => "lost",
        (SidecarRecord::Unreadable, Some(_)) => "unreadable",
        (SidecarRecord::Absent, Some(_)) => "unrecorded",
        (_, None) if is_unfinished || records.is_half_written(resource) => "lost",
        (_, None) => return Ok(None),
    };
    Ok(Some(Observed {
        state: state.to_owned(),
        generation: found.as_ref().map_or_else(|| state.to_owned(), ToString::to_string),
        // A directory that replaced ours only proves that ours is gone.
        identity: Some(match found {
            Some(inode) if is_ours || recorded.is_none() => inode.into(),
            Some(_) | None => Identity::Traces,
        }),
        ..outline(Kind::Directory, resource, &record)
    }))
}

/// Returns the directory that has one of the resource's names, even while it is being removed.
///
/// The recorded directory takes precedence over any other.
fn found_directory(
    records: &SidecarDirectory,
    resource: &ResourceId,
    recorded: Option<&Inode>,
) -> io::Result<Option<Inode>> {
    let mut found = Vec::new();
    for path in [
        records.directory(resource),
        records.removing_directory(resource),
        records.making_directory(resource),
    ] {
        found.extend(Inode::at(&path)?);
    }
    let own = found.iter().find(|one| recorded.is_some_and(|ours| ours.matches(one)));
    if own.is_some() {
        return Ok(own.cloned());
    }
    // A directory that is being created is empty, so it holds no data of another user.
    let unfinished = Inode::at(&records.making_directory(resource))?;
    Ok(found.into_iter().find(|one| Some(one) != unfinished.as_ref()))
}

fn has_directory(records: &SidecarDirectory, resource: &ResourceId) -> bool {
    !matches!(found_directory(records, resource, None), Ok(None))
}

/// Returns the directory resource that a workload started in.
pub(super) fn used_directory(records: &SidecarDirectory, sidecar: &Sidecar) -> Option<ResourceId> {
    let requested = sidecar.directory.as_ref()?;
    let real = fs::canonicalize(requested).unwrap_or_else(|_| requested.clone());
    let below = real.strip_prefix(records.root()).ok()?;
    ResourceId::of_object(below.components().next()?.as_os_str().to_str()?)
}

/// Returns an object with only what the record contains.
fn outline(kind: Kind, resource: &ResourceId, record: &SidecarRecord) -> Observed {
    let id = resource.object_name();
    let (name, labels, created_at) = match record {
        SidecarRecord::Readable(sidecar) => {
            (sidecar.name.clone(), sidecar.labels.clone(), Some(sidecar.created_at))
        }
        SidecarRecord::Unreadable => (id.clone(), Labels::new(), None),
        // Without a record the name or the marker still identifies the resource.
        SidecarRecord::Absent => {
            let label = (labels::RESOURCE.to_owned(), resource.to_string());
            (id.clone(), Labels::from([label]), None)
        }
    };
    Observed { name, created_at, labels, ..Observed::known_by_id(crate::NAME, kind, id) }
}
