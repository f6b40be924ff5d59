//! Control groups: where they can be created, and their limits.
//!
//! Version 2 is used where it is mounted, and version 1 per controller where it is not; both may be
//! mounted at once. A group is created in the group of the supervisor. For version 2 it may also be
//! in the nearest ancestor that can provide the requested controllers. Its name is always exactly
//! the object's name.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use creel_model::provider::Limits;
use rustix::fs::{Access, access};
use serde::Serialize;

use super::group::GroupRecord;

/// The period of the processor limit.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// The init and its reaper are in the group and must not count against the limit.
const OWN_TASK_COUNT: u64 = 2;

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

/// A group to create, and its settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedGroup {
    /// Its path.
    pub path: PathBuf,
    /// File, value, and the limit that is missing when the file cannot be written.
    settings: Vec<(&'static str, String, &'static str)>,
}

/// The groups of this process in each hierarchy.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Hierarchies {
    /// Version 2: the group of this process first, then its ancestors.
    unified: Vec<PathBuf>,
    /// Version 1: the group of this process by controller.
    by_controller: BTreeMap<String, PathBuf>,
}

impl Hierarchies {
    /// Finds the groups of this process.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        Ok(Self::parse(&mounts, &fs::read_to_string("/proc/self/cgroup")?))
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
    pub(super) fn version(&self) -> Option<CgroupVersion> {
        match (self.unified.is_empty(), self.by_controller.is_empty()) {
            (true, true) => None,
            (false, true) => Some(CgroupVersion::V2),
            (true, false) => Some(CgroupVersion::V1),
            (false, false) => Some(CgroupVersion::Hybrid),
        }
    }

    /// Plans the groups of an object: those its limits need and one to end it by.
    ///
    /// The second value names the limits that no group here can provide.
    pub(super) fn plan(&self, name: &str, limits: &Limits) -> (Vec<PlannedGroup>, Vec<String>) {
        let mut groups: BTreeMap<PathBuf, Vec<_>> = BTreeMap::new();
        let mut missing = Vec::new();
        let mut unified_settings = Vec::new();
        let mut controllers = Vec::new();
        for setting in limit_settings(limits) {
            if let Some(parent) = self.writable_v1(setting.controller) {
                groups.entry(parent.join(name)).or_default().extend(setting.v1);
            } else if self.unified.iter().any(|group| offers(group, setting.controller)) {
                controllers.push(setting.controller);
                unified_settings.extend(setting.v2);
            } else {
                missing.push(setting.limit.to_owned());
            }
        }
        match self.unified_parent(&controllers) {
            Some(parent) => {
                groups.entry(parent.join(name)).or_default().extend(unified_settings);
            }
            None => {
                missing.extend(unified_settings.iter().map(|(_, _, limit)| (*limit).to_owned()))
            }
        }
        if let Some(parent) = self.writable_v1("freezer") {
            groups.entry(parent.join(name)).or_default();
        }
        missing.sort_unstable();
        missing.dedup();
        let plan = |(path, settings)| PlannedGroup { path, settings };
        (groups.into_iter().map(plan).collect(), missing)
    }

    /// Returns the existing groups of this name near this process.
    pub(super) fn existing(&self, name: &str) -> Vec<PathBuf> {
        let parents = self.unified.iter().chain(self.by_controller.values());
        let mut found: Vec<PathBuf> =
            parents.map(|parent| parent.join(name)).filter(|path| path.is_dir()).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the version 1 freezer group of this process.
    pub(super) fn freezer(&self) -> Option<&PathBuf> {
        self.by_controller.get("freezer")
    }

    /// Returns whether a group of version 1 has frozen a process; not even a kill reaches it then.
    pub(super) fn is_frozen(&self, pid: i32) -> bool {
        let (Ok(mounts), Ok(own)) = (
            fs::read_to_string("/proc/self/mountinfo"),
            fs::read_to_string(format!("/proc/{pid}/cgroup")),
        ) else {
            return false;
        };
        let groups = Self::parse(&mounts, &own);
        let state = groups.freezer().map(|group| fs::read_to_string(group.join("freezer.state")));
        state.is_some_and(|state| state.is_ok_and(|state| state.trim() != "THAWED"))
    }

    /// Returns the same hierarchies without version 2.
    #[cfg(test)]
    pub(super) fn without_unified(self) -> Self {
        Self { unified: Vec::new(), ..self }
    }

    fn writable_v1(&self, controller: &str) -> Option<&PathBuf> {
        self.by_controller.get(controller).filter(|group| is_writable(group))
    }

    /// Returns the nearest group that gives its children all these controllers.
    ///
    /// If there is none, it returns the nearest group that accepts children at all.
    fn unified_parent(&self, controllers: &[&str]) -> Option<&PathBuf> {
        let enables_all = |group: &&PathBuf| {
            bears(group, controllers)
                && controllers.iter().all(|controller| enables(group, controller))
        };
        let bears_any = |group: &&PathBuf| bears(group, &[]);
        self.unified.iter().find(enables_all).or_else(|| self.unified.iter().find(bears_any))
    }
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

/// One requested limit, and the settings for it in either version.
struct LimitSetting {
    limit: &'static str,
    controller: &'static str,
    v1: Vec<(&'static str, String, &'static str)>,
    v2: Vec<(&'static str, String, &'static str)>,
}

fn limit_settings(limits: &Limits) -> Vec<LimitSetting> {
    let mut limit_settings = Vec::new();
    if let Some(bytes) = limits.memory {
        limit_settings.push(LimitSetting {
            limit: "memory",
            controller: "memory",
            v1: vec![("memory.limit_in_bytes", bytes.to_string(), "memory")],
            v2: vec![("memory.max", bytes.to_string(), "memory")],
        });
    }
    if let Some(cpus) = limits.cpus {
        // The kernel refuses less than a hundredth of a processor.
        let quota = ((cpus * CPU_PERIOD_MICROS as f64) as u64).max(1000);
        limit_settings.push(LimitSetting {
            limit: "cpus",
            controller: "cpu",
            v1: vec![
                ("cpu.cfs_period_us", CPU_PERIOD_MICROS.to_string(), "cpus"),
                ("cpu.cfs_quota_us", quota.to_string(), "cpus"),
            ],
            v2: vec![("cpu.max", format!("{quota} {CPU_PERIOD_MICROS}"), "cpus")],
        });
    }
    if let Some(processes) = limits.processes {
        let value = processes.saturating_add(OWN_TASK_COUNT).to_string();
        let setting = vec![("pids.max", value, "processes")];
        limit_settings.push(LimitSetting {
            limit: "processes",
            controller: "pids",
            v1: setting.clone(),
            v2: setting,
        });
    }
    limit_settings
}

fn is_writable(group: &Path) -> bool {
    access(group, Access::WRITE_OK).is_ok()
}

fn lists(file: &Path, controller: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|list| list.split_whitespace().any(|one| one == controller))
}

fn offers(group: &Path, controller: &str) -> bool {
    lists(&group.join("cgroup.controllers"), controller)
}

/// Returns whether children with these controllers can be created in a group, and accept processes.
///
/// A group with processes of its own must not pass controllers to its children. The kernel still
/// lets it pass some of them, and from then on refuses every process in its children. Only the root
/// is exempt.
fn bears(group: &Path, controllers: &[&str]) -> bool {
    let is_root = !group.join("cgroup.type").exists();
    let hands_down = !controllers.is_empty()
        || fs::read_to_string(group.join("cgroup.subtree_control"))
            .is_ok_and(|list| !list.trim().is_empty());
    let is_empty = || listed(group).is_ok_and(|processes| processes.is_empty());
    is_writable(group) && (is_root || !hands_down || is_empty())
}

/// Returns whether children of the group have the controller, after enabling it if necessary.
fn enables(group: &Path, controller: &str) -> bool {
    let switch = group.join("cgroup.subtree_control");
    if lists(&switch, controller) {
        return true;
    }
    // A group that may not pass it on refuses; an ancestor may still be able to.
    fs::write(&switch, format!("+{controller}")).is_ok() && lists(&switch, controller)
}

impl PlannedGroup {
    /// Creates the group; returns its record, and the limits that could not be set.
    ///
    /// A group that already exists is an error because it is not ours: an earlier group of ours is
    /// removed before its tree is created again.
    pub(super) fn make(&self) -> io::Result<(GroupRecord, Vec<String>)> {
        fs::create_dir(&self.path)?;
        let mut group = self.record();
        group.identify()?;
        let mut missing = Vec::new();
        for (file, value, limit) in &self.settings {
            if fs::write(self.path.join(file), value).is_err() {
                missing.push((*limit).to_owned());
            }
        }
        // Without this, memory could move to swap instead. A kernel without swap has no such file.
        for (file, limit_file) in [
            ("memory.swap.max", "memory.max"),
            ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes"),
        ] {
            if let Some((_, value, _)) = self.settings.iter().find(|one| one.0 == limit_file) {
                let value = if file == "memory.swap.max" { "0" } else { value };
                let _ = fs::write(self.path.join(file), value);
            }
        }
        Ok((group, missing))
    }

    /// Returns the record of the group before it is created.
    pub(super) fn record(&self) -> GroupRecord {
        GroupRecord::planned(self.path.clone())
    }

    /// Returns the limits that this group should enforce.
    pub(super) fn limits(&self) -> Vec<String> {
        self.settings.iter().map(|(_, _, limit)| (*limit).to_owned()).collect()
    }
}

/// Returns the processes in a group.
fn listed(group: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
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

    /// Creates a group of version 2 as plain files, with its passed-on controllers and its
    /// processes.
    fn unified_group(path: PathBuf, hands_down: &str, processes: &str) -> PathBuf {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cgroup.controllers"), "cpu memory pids").unwrap();
        fs::write(path.join("cgroup.subtree_control"), hands_down).unwrap();
        fs::write(path.join("cgroup.procs"), processes).unwrap();
        path
    }

    #[test]
    fn a_group_with_processes_of_its_own_hands_no_controller_down() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits { processes: Some(5), ..Limits::default() };
        let root = unified_group(directory.path().join("root"), "cpu memory pids", "1\n");
        let own = unified_group(root.join("own"), "", "2\n");
        fs::write(own.join("cgroup.type"), "domain").unwrap();
        let parent_of = |limits: &Limits| {
            let unified = vec![own.clone(), root.clone()];
            let found = Hierarchies { unified, ..Hierarchies::default() };
            let (groups, missing) = found.plan("tree", limits);
            assert!(missing.is_empty(), "{missing:?}");
            groups[0].path.parent().unwrap().to_owned()
        };
        assert_eq!(parent_of(&limits), root);
        assert_eq!(fs::read_to_string(own.join("cgroup.subtree_control")).unwrap(), "");
        assert_eq!(parent_of(&Limits::default()), own);
        // A controller was enabled by other means: children of this group accept no process any
        // more.
        fs::write(own.join("cgroup.subtree_control"), "pids").unwrap();
        assert_eq!(parent_of(&Limits::default()), root);
    }
}
