//! The records on disk, which take the place of a daemon's memory.
//!
//! A record is written whole (a temporary file, synced, then renamed) before the object exists, and
//! is removed after the object is gone. Only the supervisor writes sidecars; the holder writes only
//! its ending.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_model::id::ResourceId;
use creel_model::labels::Labels;
use creel_model::os;
use creel_model::provider::{CreateRequest, Kind, Limits, Spec};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::cgroup::GroupRecord;
use super::inode::Inode;
use super::tree_record::{ProcessEnding, TreeRecord};

/// The version of the stored form.
const VERSION: u32 = 1;

/// The record of one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sidecar {
    /// The version of this form.
    pub version: u32,
    /// The resource the object was created for.
    pub resource: ResourceId,
    /// The kind of the object.
    pub kind: Kind,
    /// Its display name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// When the record was written, just before the object was created.
    pub created_at: Timestamp,
    /// How long a tree may live without a renewal.
    pub lease: Duration,
    /// The boot in which it was created; no process outlives it.
    pub boot: String,
    /// The pid namespace whose pids are recorded here.
    pub pid_namespace: u64,
    /// The working directory of the workload.
    pub directory: Option<PathBuf>,
    /// The limits of the tree, for a restart.
    #[serde(default)]
    pub limits: Limits,
    /// The control groups created for it. They are recorded before they exist, and again with their
    /// inodes before anything is started in them.
    pub cgroups: Vec<GroupRecord>,
    /// The identity of the directory; recorded before the directory gets its name.
    #[serde(default)]
    pub inode: Option<Inode>,
    /// The size of its disk, where a directory has one.
    #[serde(default)]
    pub disk: Option<u64>,
    /// The requested limits that could not be set.
    pub limits_missing: Vec<String>,
    /// The tree, once it runs.
    pub tree: Option<TreeRecord>,
}

impl Sidecar {
    /// Starts the record of an object that does not exist yet.
    pub(super) fn of_request(request: &CreateRequest) -> io::Result<Self> {
        let (directory, limits) = match &request.spec {
            Spec::Process(spec) => (spec.directory.clone(), spec.limits.clone()),
            _ => (None, Limits::default()),
        };
        Ok(Self {
            version: VERSION,
            resource: request.resource,
            kind: request.spec.kind(),
            name: request.name.clone(),
            labels: request.labels.clone(),
            created_at: Timestamp::now(),
            lease: request.lease,
            boot: os::boot_id()?,
            pid_namespace: os::pid_namespace()?,
            directory,
            limits,
            cgroups: Vec::new(),
            inode: None,
            disk: match &request.spec {
                Spec::Disk { bytes } => Some(*bytes),
                _ => None,
            },
            limits_missing: Vec::new(),
            tree: None,
        })
    }
}

/// A record as it was found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SidecarRecord {
    /// It is intact.
    Readable(Box<Sidecar>),
    /// It is damaged, or of a later version.
    Unreadable,
    /// There is none.
    Absent,
}

impl SidecarRecord {
    /// Returns the contents of the record, if it is readable.
    pub(super) fn sidecar(&self) -> Option<&Sidecar> {
        match self {
            Self::Readable(sidecar) => Some(sidecar),
            Self::Unreadable | Self::Absent => None,
        }
    }

    /// Returns the recorded control groups.
    pub(super) fn groups(&self) -> &[GroupRecord] {
        self.sidecar().map(|sidecar| sidecar.cgroups.as_slice()).unwrap_or_default()
    }
}

/// The directory that holds the records, and the names in it.
#[derive(Debug, Clone)]
pub(super) struct SidecarDirectory {
    root: PathBuf,
}

impl SidecarDirectory {
    /// Opens the directory for reading.
    ///
    /// A directory that does not exist counts as empty: a tree may have outlived its records.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        match fs::canonicalize(root) {
            Ok(root) => Ok(Self { root }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { root: root.to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the directory and creates it if necessary, inaccessible to other users.
    pub(super) fn make(root: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        Ok(Self { root: fs::canonicalize(root)? })
    }

    /// Returns the directory itself.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the sidecar.
    pub(super) fn sidecar_file(&self, resource: &ResourceId) -> PathBuf {
        self.file(resource, "json")
    }

    /// Returns the path of the workload's output.
    pub(super) fn log_file(&self, resource: &ResourceId) -> PathBuf {
        self.file(resource, "log")
    }

    /// Returns the path of the lease.
    pub(super) fn lease_file(&self, resource: &ResourceId) -> PathBuf {
        self.file(resource, "lease")
    }

    /// Returns the path of the ending.
    pub(super) fn ending_file(&self, resource: &ResourceId) -> PathBuf {
        self.file(resource, "exit")
    }

    /// Returns the path of a directory resource.
    pub(super) fn directory(&self, resource: &ResourceId) -> PathBuf {
        self.root.join(resource.object_name())
    }

    /// Returns the path of a directory resource while it is being removed.
    pub(super) fn removing_directory(&self, resource: &ResourceId) -> PathBuf {
        self.root.join(format!(".{}.removing", resource.object_name()))
    }

    /// Returns the path of a directory resource until it is recorded.
    pub(super) fn making_directory(&self, resource: &ResourceId) -> PathBuf {
        self.root.join(format!(".{}.making", resource.object_name()))
    }

    fn file(&self, resource: &ResourceId, extension: &str) -> PathBuf {
        self.root.join(format!("{}.{extension}", resource.digits()))
    }

    /// Reads a record.
    pub(super) fn read(&self, resource: &ResourceId) -> io::Result<SidecarRecord> {
        let bytes = match fs::read(self.sidecar_file(resource)) {
            Ok(bytes) => bytes,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound => Ok(SidecarRecord::Absent),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
                        Ok(SidecarRecord::Unreadable)
                    }
                    _ => Err(error),
                };
            }
        };
        Ok(match serde_json::from_slice::<Sidecar>(&bytes) {
            Ok(sidecar) if sidecar.version == VERSION && sidecar.resource == *resource => {
                SidecarRecord::Readable(Box::new(sidecar))
            }
            _ => SidecarRecord::Unreadable,
        })
    }

    /// Writes a record; it is durable when this returns.
    pub(super) fn write(&self, sidecar: &Sidecar) -> io::Result<()> {
        write_whole(&self.sidecar_file(&sidecar.resource), &serde_json::to_vec_pretty(sidecar)?)
    }

    /// Returns whether a first record was begun and never finished.
    ///
    /// This is all that a supervisor leaves that was killed while it wrote the record.
    pub(super) fn is_half_written(&self, resource: &ResourceId) -> bool {
        temporary_of(&self.sidecar_file(resource)).exists()
    }

    /// Reads how a tree ended; `None` when no ending is recorded.
    pub(super) fn read_ending(&self, resource: &ResourceId) -> Option<ProcessEnding> {
        serde_json::from_slice(&fs::read(self.ending_file(resource)).ok()?).ok()
    }

    /// Removes the record of how a tree ended, before it starts again.
    pub(super) fn forget_ending(&self, resource: &ResourceId) -> io::Result<()> {
        match fs::remove_file(self.ending_file(resource)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes all files of an object, the sidecar last.
    pub(super) fn forget(&self, resource: &ResourceId) -> io::Result<()> {
        for file in [
            temporary_of(&self.sidecar_file(resource)),
            temporary_of(&self.ending_file(resource)),
            self.log_file(resource),
            self.lease_file(resource),
            self.ending_file(resource),
            self.sidecar_file(resource),
        ] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the resources with a sidecar or a directory here.
    pub(super) fn resources(&self) -> io::Result<Vec<ResourceId>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(error),
        };
        for entry in entries {
            if let Some(resource) = entry?.file_name().to_str().and_then(resource_of_name) {
                found.push(resource);
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

fn resource_of_name(name: &str) -> Option<ResourceId> {
    if let Some(digits) = name.strip_suffix(".json") {
        return ResourceId::of_object(&format!("creel-{digits}"));
    }
    let private = name
        .strip_prefix('.')
        .and_then(|rest| rest.strip_suffix(".removing").or_else(|| rest.strip_suffix(".making")));
    ResourceId::of_object(private.unwrap_or(name))
}

/// Writes a file whole or not at all.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary_of(path);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn temporary_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_versions_without_identities_are_read() {
        let resource = ResourceId::new();
        let old = format!(
            r#"{{"version":1,"resource":"{resource}","kind":"process","name":"creel-x","labels":{{}},
                "created_at":"2026-01-01T00:00:00Z","lease":{{"secs":60,"nanos":0}},"boot":"b",
                "pid_namespace":1,"directory":null,"cgroups":["/sys/fs/cgroup/freezer/x"],
                "limits_missing":[],"tree":null}}"#
        );
        let read: Sidecar = serde_json::from_str(&old).expect("the old form");
        assert_eq!(read.cgroups, [GroupRecord::planned("/sys/fs/cgroup/freezer/x".into())]);
        assert_eq!((read.inode, read.disk), (None, None));
    }

    #[test]
    fn only_exact_names_are_resources() {
        let resource = ResourceId::new();
        let (name, digits) = (resource.object_name(), resource.digits());
        let private = [format!(".{name}.removing"), format!(".{name}.making")];
        for ours in [format!("{digits}.json"), name.clone()].into_iter().chain(private) {
            assert_eq!(resource_of_name(&ours), Some(resource), "{ours}");
        }
        for foreign in [
            format!("{digits}.json.new"),
            format!("{name}0"),
            name.to_uppercase(),
            format!("{name}.removing"),
            format!("{name}.making"),
            format!("x{name}"),
            "../x".to_owned(),
        ] {
            assert_eq!(resource_of_name(&foreign), None, "{foreign}");
        }
    }
}
