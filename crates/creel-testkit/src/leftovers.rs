//! Ends all processes below one of our directories.
//!
//! A killed test run leaves an engine, its shims, its containers and its mounts behind. All of them
//! name the engine's directory: the daemons in their arguments, the containers in their root mount,
//! the mounts in their mount point, the control groups in their path. Nothing else is a reason to
//! end a process. A signal is sent through a pidfd opened before the check, so a process that
//! merely got the same pid is never hit.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::wait::eventually;

/// The top control group of all private engines. The engine's directory follows.
const CGROUP_ROOT: &str = "/creel-engine";

/// The programs that are ended if their arguments name our directory.
const DAEMONS: [&str; 9] = [
    "dockerd",
    "containerd",
    "containerd-shim-runc-v2",
    "docker-init",
    "docker-proxy",
    "runc",
    "podman",
    "conmon",
    "sshd",
];

/// How long killed processes may take to disappear.
const KILL_DEADLINE: Duration = Duration::from_secs(15);

/// Returns the control group of the containers of an engine in `directory`.
pub fn cgroup_of(directory: &Path) -> String {
    format!("{CGROUP_ROOT}{}", directory.display())
}

/// Kills the processes below the directory, unmounts everything there, and removes it.
///
/// # Errors
///
/// Fails when something survives SIGKILL, or cannot be unmounted or removed.
pub fn clear(directory: &Path) -> Result<()> {
    kill_daemons(directory)?;
    kill_containers(directory)?;
    unmount_below(directory)?;
    remove_cgroups(directory);
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Kills every process whose root file system is below the directory.
///
/// # Errors
///
/// Fails when one survives.
pub fn kill_containers(directory: &Path) -> Result<()> {
    kill_all(|pid| has_root_below(pid, directory))
}

/// Kills every process of one program that names a path below the directory.
///
/// # Errors
///
/// Fails when one survives.
pub fn kill_program(program: &str, directory: &Path) -> Result<()> {
    kill_all(|pid| is_program_of(pid, &[program], directory))
}

/// Kills every process whose environment names exactly this directory.
///
/// # Errors
///
/// Fails when one survives.
pub fn kill_pointed_at(variable: &str, directory: &Path) -> Result<()> {
    let wanted = format!("{variable}={}", directory.display()).into_bytes();
    kill_all(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted)
    })
}

/// Returns whether any daemon of the directory runs.
pub fn any_daemon(directory: &Path) -> bool {
    pids().into_iter().any(|pid| is_program_of(pid, &DAEMONS, directory))
}

fn kill_daemons(directory: &Path) -> Result<()> {
    kill_all(|pid| is_program_of(pid, &DAEMONS, directory))
}

fn kill_all(matches: impl Fn(i32) -> bool) -> Result<()> {
    let mut survivors = Vec::new();
    // A dying daemon may start one more child, so repeat until a round finds no process.
    let gone = eventually(KILL_DEADLINE, || {
        survivors = pids().into_iter().filter(|pid| kill_if(*pid, &matches)).collect();
        survivors.is_empty()
    });
    if !gone {
        bail!("processes {survivors:?} survived SIGKILL");
    }
    Ok(())
}

/// Kills the process if it matches, and returns whether it matched.
fn kill_if(pid: i32, matches: &impl Fn(i32) -> bool) -> bool {
    let Some(handle) = open(pid) else { return false };
    if !matches(pid) {
        return false;
    }
    // It may have ended meanwhile, which is fine.
    let _ = pidfd_send_signal(&handle, Signal::KILL);
    true
}

fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn is_program_of(pid: i32, programs: &[&str], directory: &Path) -> bool {
    // A zombie has an empty command line, so it never matches.
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut arguments = line.split(|byte| *byte == 0);
    let program = Path::new(OsStr::from_bytes(arguments.next().unwrap_or_default()));
    let known = program.file_name().is_some_and(|name| programs.iter().any(|known| name == *known));
    known && arguments.any(|argument| names_path_below(argument, directory))
}

fn names_path_below(argument: &[u8], directory: &Path) -> bool {
    let value = match argument.iter().position(|byte| *byte == b'=') {
        Some(equals) if argument.starts_with(b"--") => &argument[equals + 1..],
        _ => argument,
    };
    let value = value.strip_prefix(b"unix://").unwrap_or(value);
    let path = Path::new(OsStr::from_bytes(value));
    path.is_absolute() && path.starts_with(directory)
}

fn has_root_below(pid: i32, directory: &Path) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { return false };
    let needle = format!("{}/", directory.display());
    text.lines().any(|line| is_root_mount(line) && line.contains(&needle))
}

fn is_root_mount(line: &str) -> bool {
    line.split(' ').nth(4) == Some("/")
}

fn unmount_below(directory: &Path) -> Result<()> {
    let mut mounts = mounts_below(directory)?;
    // The deepest and latest first.
    mounts.reverse();
    for mount in &mounts {
        // Detach lazily, because a dying namespace may still hold a copy.
        unmount(mount, UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {}", mount.display()))?;
    }
    Ok(())
}

fn mounts_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    let places = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(places.filter(|place| place.starts_with(directory)).collect())
}

fn remove_cgroups(directory: &Path) {
    let group = cgroup_of(directory);
    for hierarchy in cgroup_hierarchies() {
        let mut place = hierarchy.join(group.trim_start_matches('/'));
        remove_group(&place);
        // Groups that mirror the directory's parents are removed when they are empty.
        while place.pop() && place != hierarchy && fs::remove_dir(&place).is_ok() {}
    }
}

fn cgroup_hierarchies() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| matches!(fields.get(2), Some(&("cgroup" | "cgroup2"))))
        .filter_map(|fields| fields.get(1).map(PathBuf::from))
        .collect()
}

/// Removes a control group and those below it. A group with a process stays.
fn remove_group(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_path_components_count_as_below() {
        let directory = Path::new("/var/tmp/creel-engine-1");
        for below in [
            "/var/tmp/creel-engine-1/data",
            "unix:///var/tmp/creel-engine-1/docker.sock",
            "--host=unix:///var/tmp/creel-engine-1/docker.sock",
            "--data-root=/var/tmp/creel-engine-1/data",
        ] {
            assert!(names_path_below(below.as_bytes(), directory), "{below}");
        }
        for other in ["/var/tmp/creel-engine-12/data", "/var/tmp", "creel-engine-1", "-v", ""] {
            assert!(!names_path_below(other.as_bytes(), directory), "{other}");
        }
    }

    #[test]
    fn an_orphan_is_known_by_its_environment() {
        let directory = tempfile::tempdir().unwrap();
        let start = |path: &Path| {
            let mut command = std::process::Command::new("sleep");
            command.arg("1000").env("CREEL_LEFTOVERS_TEST", path).spawn().unwrap()
        };
        let mut orphan = start(directory.path());
        let mut other = start(&directory.path().join("below"));
        // The killed child stays our zombie, which has no environment any more.
        kill_pointed_at("CREEL_LEFTOVERS_TEST", directory.path()).unwrap();
        assert!(!orphan.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_program_that_only_reads_our_files_is_not_killed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log");
        fs::write(&file, "").unwrap();
        let mut reader = std::process::Command::new("tail").arg("-f").arg(&file).spawn().unwrap();
        kill_daemons(directory.path()).unwrap();
        assert!(reader.try_wait().unwrap().is_none());
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
}
