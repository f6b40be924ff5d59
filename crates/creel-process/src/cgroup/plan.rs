//! Plans and creates the groups of an object, with their limits.
//!
//! A group is created in the group of the supervisor. For version 2 it may also be in the nearest
//! ancestor that can provide the requested controllers. Its name is always exactly the object's
//! name.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use creel_model::provider::Limits;
use rustix::fs::{Access, access};

use super::group::GroupRecord;
use super::hierarchies::Hierarchies;

/// The period of the processor limit.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// The init and its reaper are in the group and must not count against the limit.
const OWN_TASK_COUNT: u64 = 2;

/// A group to create, and its settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedGroup {
    /// Its path.
    pub path: PathBuf,
    /// File, value, and the limit that is missing when the file cannot be written.
    settings: Vec<(&'static str, String, &'static str)>,
}

impl Hierarchies {
    /// Plans the groups of an object: those its limits need and one to end it by.
    ///
    /// The second value names the limits that no group here can provide.
    pub(crate) fn plan(&self, name: &str, limits: &Limits) -> (Vec<PlannedGroup>, Vec<String>) {
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
    pub(crate) fn make(&self) -> io::Result<(GroupRecord, Vec<String>)> {
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
    pub(crate) fn record(&self) -> GroupRecord {
        GroupRecord::planned(self.path.clone())
    }

    /// Returns the limits that this group should enforce.
    pub(crate) fn limits(&self) -> Vec<String> {
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
