//! The control groups of one tree, by identity.
//!
//! A group is opened once, compared with the recorded inode, and then used through that handle
//! alone. A group that was created again under the same name is a different one: its processes are
//! not the tree's, it is neither frozen nor killed, and it is kept. Only `rmdir` has to use the
//! name. It directly follows the comparison, and the kernel refuses it for a group that is in use.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use creel_model::id::ResourceId;
use creel_model::os::ProcessKey;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, accessat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::beneath;
use crate::inode::Inode;

use super::hierarchies::Hierarchies;

/// How long a group may stay busy after its last process died.
const REMOVE_PATIENCE: Duration = Duration::from_secs(5);

/// A control group that was created for a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredGroup")]
pub(crate) struct GroupRecord {
    /// Its path.
    pub path: PathBuf,
    /// Its identity; `None` until it exists.
    pub inode: Option<Inode>,
}

/// The stored form; records of earlier versions have only the path.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredGroup {
    Path(PathBuf),
    Whole {
        path: PathBuf,
        #[serde(default)]
        inode: Option<Inode>,
    },
}

impl From<StoredGroup> for GroupRecord {
    fn from(stored: StoredGroup) -> Self {
        match stored {
            StoredGroup::Path(path) => Self { path, inode: None },
            StoredGroup::Whole { path, inode } => Self { path, inode },
        }
    }
}

impl GroupRecord {
    /// Creates the record of a group that does not exist yet.
    pub(crate) fn planned(path: PathBuf) -> Self {
        Self { path, inode: None }
    }

    /// Records the identity of the group that has the path now.
    pub(crate) fn identify(&mut self) -> io::Result<()> {
        self.inode = Inode::at(&self.path)?;
        Ok(())
    }

    /// Opens the group, if it is still the recorded one.
    fn open(&self, resource: &ResourceId) -> Option<OpenGroup> {
        if !is_of(&self.path, resource) {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(CWD, &self.path, flags, Mode::empty()).ok()?;
        let (recorded, seen) = (self.inode.as_ref()?, Inode::of(&handle).ok()?);
        let is_ours = recorded.matches(&seen);
        is_ours.then_some(OpenGroup { handle })
    }

    /// Moves this process into the group.
    pub(crate) fn join(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), "0")
    }

    /// Returns whether all processes of the group can be ended through it.
    pub(crate) fn can_end(&self) -> bool {
        ["cgroup.kill", "cgroup.freeze", "freezer.state"]
            .iter()
            .any(|file| self.path.join(file).exists())
    }

    /// Kills every process in the group and its descendants.
    pub(crate) fn kill(&self, resource: &ResourceId) -> io::Result<()> {
        let Some(group) = self.open(resource) else { return Ok(()) };
        // A caller inside the group would freeze or kill itself halfway.
        if group.all_pids().contains(&getpid().as_raw_pid()) {
            group.thaw();
            return Ok(());
        }
        if group.has("cgroup.kill") {
            group.thaw();
            return group.write("cgroup.kill", "1");
        }
        // A frozen process cannot fork; it dies when it is thawed.
        let frozen = group.freeze();
        let killed = group.kill_listed();
        group.thaw();
        frozen.and(killed)
    }

    /// Thaws the processes of the group and its descendants. Returns whether any group was frozen.
    pub(crate) fn thaw(&self, resource: &ResourceId) -> bool {
        self.open(resource).is_some_and(|group| group.thaw())
    }

    /// Moves a process into the group.
    fn take(&self, resource: &ResourceId, pid: i32) -> bool {
        let group = self.open(resource).filter(|group| group.has("freezer.state"));
        group.is_some_and(|group| group.write("cgroup.procs", &pid.to_string()).is_ok())
    }

    /// Removes the group when it is empty, with the groups that the workload created in it.
    ///
    /// A group that is not the recorded one is kept. A group without a recorded inode is removed
    /// only if it is empty: nothing was ever started in it.
    pub(crate) fn remove(&self, resource: &ResourceId) -> io::Result<()> {
        if !is_of(&self.path, resource) {
            return Ok(());
        }
        if self.inode.is_none() {
            return remove_if_empty(&self.path);
        }
        let deadline = Instant::now() + REMOVE_PATIENCE;
        loop {
            match self.remove_once(resource) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                    // The kernel releases dead processes with a short delay and no notification.
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    fn remove_once(&self, resource: &ResourceId) -> io::Result<()> {
        let Some(group) = self.open(resource) else {
            if self.path.is_dir() {
                tracing::warn!(path = %self.path.display(), "a control group that another user \
                    created under this name is kept");
            }
            return Ok(());
        };
        group.remove_children()?;
        drop(group);
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns whether a recorded path can be a group of this resource at all.
fn is_of(group: &Path, resource: &ResourceId) -> bool {
    group.file_name().and_then(|name| name.to_str()) == Some(&resource.object_name())
        && group.components().all(|part| part != Component::ParentDir)
}

/// Removes an empty group; keeps any other.
fn remove_if_empty(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a control group is kept: nothing on \
                record proves that it was made here");
            Ok(())
        }
    }
}

/// Removes the empty groups of a resource's name that are not recorded.
pub(crate) fn remove_unrecorded(resource: &ResourceId, recorded: &[GroupRecord]) {
    let near = Hierarchies::of_this_process().unwrap_or_default();
    for path in near.existing(&resource.object_name()) {
        if !recorded.iter().any(|group| group.path == path) {
            // It only logs and never fails.
            let _ = remove_if_empty(&path);
        }
    }
}

/// Returns the processes in the groups of a tree and their descendants.
///
/// Must be called after a scan of all processes, never before. A process of that scan that is still
/// the same is then known to be in one of our groups.
pub(crate) fn pids_in(groups: &[GroupRecord], resource: &ResourceId) -> HashSet<i32> {
    let open = groups.iter().filter_map(|group| group.open(resource));
    open.flat_map(|group| group.all_pids()).collect()
}

/// Thaws a process that is frozen in a group of its own choice, outside the tree's groups.
///
/// It is moved into a group that is not frozen, which thaws only this process: the frozen group and
/// its other processes are not ours to thaw. A frozen process does not end, so its pid is not
/// reused. Returns whether it was frozen.
pub(crate) fn leave_freezer(
    process: &ProcessKey,
    groups: &[GroupRecord],
    resource: &ResourceId,
) -> bool {
    let near = Hierarchies::of_this_process().unwrap_or_default();
    if !near.is_frozen(process.pid) || !matches!(process.is_alive(), Ok(true)) {
        return false;
    }
    if !groups.iter().any(|group| group.take(resource, process.pid))
        && let Some(own) = near.freezer()
    {
        // A process that cannot be moved is reported as a survivor.
        let _ = fs::write(own.join("cgroup.procs"), process.pid.to_string());
    }
    true
}

/// A group that was compared with its record.
struct OpenGroup {
    handle: OwnedFd,
}

impl OpenGroup {
    fn has(&self, file: &str) -> bool {
        accessat(&self.handle, file, rustix::fs::Access::EXISTS, AtFlags::empty()).is_ok()
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<fs::File> {
        Ok(openat(&self.handle, name, flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        self.file(name, OFlags::WRONLY)?.write_all(value.as_bytes())
    }

    fn pids(&self) -> io::Result<Vec<i32>> {
        let mut text = String::new();
        self.file("cgroup.procs", OFlags::RDONLY)?.read_to_string(&mut text)?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Returns the children of this group, with their names.
    fn children(&self) -> Vec<(CString, Self)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = openat(&self.handle, ".", flags, Mode::empty()).and_then(Dir::read_from);
        let names = listing.into_iter().flatten().filter_map(|entry| {
            let name = entry.ok()?.file_name().to_owned();
            (!matches!(name.to_bytes(), b"." | b"..")).then_some(name)
        });
        names
            .filter(|name| {
                statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
                    FileType::from_raw_mode(found.st_mode) == FileType::Directory
                })
            })
            .filter_map(|name| {
                let handle = beneath::open_directory(self.handle.as_fd(), name.as_c_str()).ok()?;
                Some((name, Self { handle }))
            })
            .collect()
    }

    /// Calls a function for this group and all its descendants, from the top down.
    fn for_all(&self, act: &mut dyn FnMut(&Self)) {
        act(self);
        for (_, child) in self.children() {
            child.for_all(act);
        }
    }

    fn all_pids(&self) -> HashSet<i32> {
        let mut pids = HashSet::new();
        self.for_all(&mut |group| pids.extend(group.pids().unwrap_or_default()));
        pids
    }

    fn freeze(&self) -> io::Result<()> {
        match self.has("freezer.state") {
            true => self.write("freezer.state", "FROZEN"),
            false if self.has("cgroup.freeze") => self.write("cgroup.freeze", "1"),
            false => Ok(()),
        }
    }

    /// Thaws this group and all its descendants, because one that was frozen by itself stays
    /// frozen. Returns whether any was.
    fn thaw(&self) -> bool {
        let mut was_frozen = false;
        self.for_all(&mut |group| {
            was_frozen |= group.is_frozen();
            // Thawing a group that is not frozen is harmless.
            let _ = group.write("freezer.state", "THAWED");
            let _ = group.write("cgroup.freeze", "0");
        });
        was_frozen
    }

    fn is_frozen(&self) -> bool {
        let says = |file, thawed: &str| {
            let mut text = String::new();
            let read =
                self.file(file, OFlags::RDONLY).and_then(|mut file| file.read_to_string(&mut text));
            read.is_ok() && text.trim() != thawed
        };
        says("freezer.state", "THAWED") || says("cgroup.freeze", "0")
    }

    fn kill_listed(&self) -> io::Result<()> {
        let mut result = Ok(());
        self.for_all(&mut |group| {
            for pid in group.pids().unwrap_or_default() {
                let killed = group.kill_one(pid);
                if result.is_ok() {
                    result = killed;
                }
            }
        });
        result
    }

    fn kill_one(&self, pid: i32) -> io::Result<()> {
        let Some(process) = Pid::from_raw(pid) else { return Ok(()) };
        let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { return Ok(()) };
        // It is still listed while we hold the handle, so the handle's process is in the group.
        if !self.pids()?.contains(&pid) {
            return Ok(());
        }
        match pidfd_send_signal(&handle, Signal::KILL) {
            Err(error) if error != Errno::SRCH => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn remove_children(&self) -> io::Result<()> {
        for (name, child) in self.children() {
            child.remove_children()?;
            drop(child);
            match unlinkat(&self.handle, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use creel_model::provider::Limits;

    use super::*;

    /// Creates a version 1 freezer group for this resource, where that is possible.
    fn freezer_group(resource: &ResourceId) -> Option<GroupRecord> {
        let planned = Hierarchies::of_this_process().ok()?.without_unified();
        let (planned, _) = planned.plan(&resource.object_name(), &Limits::default());
        let planned = planned.into_iter().next()?;
        planned.make().ok()?;
        let mut group = GroupRecord::planned(planned.path);
        group.identify().ok()?;
        Some(group)
    }

    /// A process that ends with the test.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("sleep").arg("600").spawn().expect("sleep is installed"))
        }

        fn inside(group: &Path) -> Self {
            let sleeper = Self::start();
            fs::write(group.join("cgroup.procs"), sleeper.0.id().to_string()).expect("it is ours");
            sleeper
        }

        fn lives(&mut self) -> bool {
            matches!(self.0.try_wait(), Ok(None))
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn the_freezer_alone_ends_a_group_and_those_below_it() {
        let resource = ResourceId::new();
        let Some(group) = freezer_group(&resource) else { return };
        let below = group.path.join("below");
        fs::create_dir(&below).expect("it is ours");
        let (mut inside, mut outside) = (Sleeper::inside(&group.path), Sleeper::start());
        let mut nested = Sleeper::inside(&below);
        fs::write(below.join("freezer.state"), "FROZEN").expect("it is ours");
        group.kill(&ResourceId::new()).expect("a group of another name is left alone");
        assert_eq!(pids_in(std::slice::from_ref(&group), &resource).len(), 2);
        group.kill(&resource).expect("it is ours");
        assert!(!inside.0.wait().expect("it is our child").success());
        assert!(!nested.0.wait().expect("it is our child").success());
        group.remove(&resource).expect("it is empty");
        assert!(!group.path.exists());
        assert!(outside.lives(), "a process outside was killed");
    }

    #[test]
    fn a_recreated_group_is_neither_killed_nor_removed() {
        let resource = ResourceId::new();
        let Some(group) = freezer_group(&resource) else { return };
        fs::remove_dir(&group.path).expect("it is empty");
        fs::create_dir(&group.path).expect("the name is free");
        let mut foreign = Sleeper::inside(&group.path);
        assert!(pids_in(std::slice::from_ref(&group), &resource).is_empty());
        group.kill(&resource).expect("nothing is done");
        group.remove(&resource).expect("nothing is done");
        assert!(foreign.lives(), "a foreign process was killed");
        assert!(group.path.is_dir(), "a foreign group was removed");
        let unknown = GroupRecord::planned(group.path.clone());
        unknown.kill(&resource).expect("nothing is done");
        unknown.remove(&resource).expect("it is in use, so it stays");
        assert!(foreign.lives(), "a foreign process was killed");
        drop(foreign);
        fs::remove_dir(&group.path).expect("it is empty");
    }

    #[test]
    fn groups_of_an_earlier_version_are_read_without_an_identity() {
        let old: Vec<GroupRecord> = serde_json::from_str("[\"/sys/x\"]").expect("the old form");
        assert_eq!(old, [GroupRecord::planned("/sys/x".into())]);
        let inode = Some(Inode { device: 1, inode: 2, born_ns: None, handle: None });
        let new = GroupRecord { path: "/sys/x".into(), inode };
        let text = serde_json::to_string(&new).expect("plain data");
        assert_eq!(serde_json::from_str::<GroupRecord>(&text).expect("the new form"), new);
    }

    #[test]
    fn only_the_exact_name_is_a_group_of_the_resource() {
        let resource = ResourceId::new();
        let name = resource.object_name();
        assert!(is_of(&Path::new("/sys/fs/cgroup").join(&name), &resource));
        assert!(!is_of(&Path::new("/sys/fs/cgroup").join(format!("{name}0")), &resource));
        assert!(!is_of(&Path::new("/sys/../x").join(&name), &resource));
        assert!(!is_of(Path::new("/sys/fs/cgroup/other"), &resource));
    }
}
