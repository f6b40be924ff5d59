//! Checks that the expected ledger exists: its id file, and the traces it leaves.
//!
//! A missing ledger must not be replaced by an empty one where one was in use: everything that the
//! old one recorded would lose its owner. Its id is therefore kept in a separate file, written
//! before the first record. A missing or empty ledger beside that file, an event log or sandboxes
//! is an error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use creel_model::id::{LedgerId, ResourceId};
use creel_model::os;

use crate::error::LedgerError;
use crate::{Result, files};

/// Returns the path of the file that holds the id of the ledger.
pub fn id_file(home: &Path) -> PathBuf {
    home.join("ledger.id")
}

/// Reads the id of the ledger from its file. Returns `None` if it is missing or unreadable.
pub(crate) fn recorded_id(home: &Path) -> Option<LedgerId> {
    fs::read_to_string(id_file(home)).ok()?.trim().parse().ok()
}

/// Writes the id of the ledger to its file durably.
pub fn record_id(home: &Path, id: LedgerId) -> Result<()> {
    let path = id_file(home);
    os::write_atomically(&path, &format!("{id}\n")).map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull => LedgerError::DiskFull { path: files::ledger(home) },
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            LedgerError::ReadOnly { path: files::ledger(home) }
        }
        _ => LedgerError::Home { path, source },
    })
}

/// Rejects a ledger that is missing or empty where traces of one exist.
pub(crate) fn require(home: &Path) -> Result<()> {
    let path = files::ledger(home);
    if has_content(&path) {
        return Ok(());
    }
    let traces = traces(home);
    if traces.is_empty() {
        return Ok(());
    }
    Err(LedgerError::Vanished { path, traces: traces.join(", ") })
}

/// Rejects a ledger that does not belong to this directory.
pub(crate) fn require_same(home: &Path, found: LedgerId) -> Result<()> {
    match recorded_id(home) {
        Some(expected) if expected != found => {
            Err(LedgerError::OtherLedger { path: files::ledger(home), found, expected })
        }
        Some(_) | None => Ok(()),
    }
}

/// Describes the traces that a used ledger left in the directory.
pub(crate) fn traces(home: &Path) -> Vec<String> {
    let mut traces = Vec::new();
    if id_file(home).exists() {
        traces.push("ledger.id".to_owned());
    }
    if has_content(&files::event_log(home)) {
        traces.push("events.db".to_owned());
    }
    match sandbox_count(home) {
        0 => {}
        1 => traces.push("1 sandbox".to_owned()),
        count => traces.push(format!("{count} sandboxes")),
    }
    traces
}

fn sandbox_count(home: &Path) -> usize {
    let Ok(entries) = fs::read_dir(files::sandboxes(home)) else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut resources: Vec<ResourceId> = names.filter_map(|name| resource_of(&name)).collect();
    resources.sort_unstable();
    resources.dedup();
    resources.len()
}

/// Returns the resource that a directory or its record file is named after.
fn resource_of(name: &str) -> Option<ResourceId> {
    let digits = name.strip_suffix(".json").or_else(|| name.strip_prefix("creel-"))?;
    ResourceId::of_object(&format!("creel-{digits}"))
}

/// Returns whether a file exists and is not empty.
pub fn has_content(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_has_no_traces_and_foreign_files_are_none() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(traces(home.path()), [""; 0]);
        fs::create_dir(files::sandboxes(home.path())).unwrap();
        for foreign in ["config.toml", "watchdog.log", "ledger.lock", "sandboxes/notes.json"] {
            fs::write(home.path().join(foreign), "x").unwrap();
        }
        // This event log was created, but has no content yet.
        fs::write(files::event_log(home.path()), "").unwrap();
        assert_eq!(traces(home.path()), [""; 0]);
        require(home.path()).unwrap();
    }

    #[test]
    fn every_trace_of_a_ledger_is_reported() {
        let home = tempfile::tempdir().unwrap();
        record_id(home.path(), LedgerId::new()).unwrap();
        fs::write(files::event_log(home.path()), "x").unwrap();
        let (one, other) = (ResourceId::new(), ResourceId::new());
        let sandboxes = files::sandboxes(home.path());
        fs::create_dir_all(sandboxes.join(one.object_name())).unwrap();
        for resource in [one, other] {
            fs::write(sandboxes.join(format!("{}.json", resource.digits())), "{}").unwrap();
        }
        assert_eq!(traces(home.path()), ["ledger.id", "events.db", "2 sandboxes"]);
        let error = require(home.path()).unwrap_err().to_string();
        assert!(error.ends_with("but ledger.id, events.db, 2 sandboxes are left of it"), "{error}");
        fs::write(files::ledger(home.path()), "").unwrap();
        assert!(matches!(require(home.path()), Err(LedgerError::Vanished { .. })));
    }

    #[test]
    fn a_ledger_of_another_directory_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (mine, other) = (LedgerId::new(), LedgerId::new());
        require_same(home.path(), mine).unwrap();
        record_id(home.path(), mine).unwrap();
        require_same(home.path(), mine).unwrap();
        let refused = require_same(home.path(), other);
        assert!(matches!(refused, Err(LedgerError::OtherLedger { .. })));
    }
}
