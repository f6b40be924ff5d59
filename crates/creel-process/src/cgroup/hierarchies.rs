//! The hierarchies of control groups on this machine, and the groups of this process in them.
//!
//! Version 2 is used where it is mounted, and version 1 per controller where it is not; both may be
//! mounted at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The available versions of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// One hierarchy.
    V2,
    /// Version 1 with an additional hierarchy of version 2 without controllers.
    Hybrid,
}

/// The groups of this process in each hierarchy.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Hierarchies {
    /// Version 2: the group of this process first, then its ancestors.
    pub(super) unified: Vec<PathBuf>,
    /// Version 1: the group of this process by controller.
    pub(super) by_controller: BTreeMap<String, PathBuf>,
}

impl Hierarchies {
    /// Finds the groups of this process.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        Ok(Self::parse(&read_lossy("/proc/self/mountinfo")?, &read_lossy("/proc/self/cgroup")?))
    }

    fn parse(mounts: &str, own: &str) -> Self {
        let mut found = Self::default();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let Some((mount_point, directory)) = own_directory(mounts, controllers, path) else {
                continue;
            };
            if controllers.is_empty() {
                let within = |one: &&Path| one.starts_with(&mount_point);
                found.unified = directory.ancestors().take_while(within).map(Into::into).collect();
                continue;
            }
            for controller in controllers.split(',') {
                found.by_controller.insert(controller.to_owned(), directory.clone());
            }
        }
        found
    }

    /// Returns the available versions on this machine.
    pub(crate) fn version(&self) -> Option<CgroupVersion> {
        match (self.unified.is_empty(), self.by_controller.is_empty()) {
            (true, true) => None,
            (false, true) => Some(CgroupVersion::V2),
            (true, false) => Some(CgroupVersion::V1),
            (false, false) => Some(CgroupVersion::Hybrid),
        }
    }

    /// Returns the existing groups of this name near this process.
    pub(crate) fn existing(&self, name: &str) -> Vec<PathBuf> {
        let parents = self.unified.iter().chain(self.by_controller.values());
        let mut found: Vec<PathBuf> =
            parents.map(|parent| parent.join(name)).filter(|path| path.is_dir()).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the version 1 freezer group of this process.
    pub(crate) fn freezer(&self) -> Option<&PathBuf> {
        self.by_controller.get("freezer")
    }

    /// Returns whether a group of version 1 has frozen a process; not even a kill reaches it then.
    pub(crate) fn is_frozen(&self, pid: i32) -> bool {
        let (Ok(mounts), Ok(own)) =
            (read_lossy("/proc/self/mountinfo"), read_lossy(&format!("/proc/{pid}/cgroup")))
        else {
            return false;
        };
        let groups = Self::parse(&mounts, &own);
        let state = groups.freezer().map(|group| fs::read_to_string(group.join("freezer.state")));
        state.is_some_and(|state| state.is_ok_and(|state| state.trim() != "THAWED"))
    }

    /// Returns the same hierarchies without version 2.
    #[cfg(test)]
    pub(crate) fn without_unified(self) -> Self {
        Self { unified: Vec::new(), ..self }
    }
}

/// Reads a file whose lines others influence. One with other bytes than text must not hide the
/// rest.
fn read_lossy(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Returns the directory of this process's group in the hierarchy of these controllers.
fn own_directory(mounts: &str, controllers: &str, path: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut kind_and_options = right.split(' ');
        let kind = kind_and_options.next()?;
        let options = kind_and_options.nth(1)?;
        let fits = if controllers.is_empty() {
            kind == "cgroup2"
        } else {
            kind == "cgroup"
                && controllers.split(',').all(|one| options.split(',').any(|option| option == one))
        };
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // A container sees only a part of the hierarchy, whose root is not `/`.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let directory = Path::new(point).join(below.strip_prefix("/").unwrap_or(below));
        fits.then(|| (PathBuf::from(point), directory))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_machine_with_both_versions_is_understood() {
        let found = Hierarchies::parse(HYBRID_MOUNTS, "6:freezer:/a\n1:cpu,cpuacct:/\n0::/b/c\n");
        assert_eq!(found.version(), Some(CgroupVersion::Hybrid));
        assert_eq!(found.by_controller["freezer"], Path::new("/sys/fs/cgroup/freezer/a"));
        assert_eq!(found.by_controller["cpu"], Path::new("/sys/fs/cgroup/cpu"));
        let unified =
            ["/sys/fs/cgroup/unified/b/c", "/sys/fs/cgroup/unified/b", "/sys/fs/cgroup/unified"];
        assert_eq!(found.unified, unified.map(PathBuf::from));
    }

    #[test]
    fn a_container_sees_its_part_of_the_hierarchy_as_the_whole() {
        let mounts = "41 31 0:38 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let found = Hierarchies::parse(mounts, "0::/docker/x/y\n");
        assert_eq!(found.unified[0], Path::new("/sys/fs/cgroup/y"));
        assert_eq!(found.version(), Some(CgroupVersion::V2));
    }
}
