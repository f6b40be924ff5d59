//! The visible processes of this machine.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_model::os;
use creel_sanitise::{Masker, Secrets};

use crate::select::NamePattern;

use super::program::{ProgramName, run_by};

/// Number of hex digits in a container id.
const CONTAINER_ID: usize = 64;
/// Maximum number of characters of a command line that are shown.
const SHOWN: usize = 80;
/// How many characters are searched for secrets, so that one that begins in the shown part is
/// found.
const SEARCHED: usize = 2_048;
/// How often the command line of a starting program is read.
const STARTING_READS: u32 = 10;
/// Pause between these reads.
const STARTING_PAUSE: Duration = Duration::from_millis(1);

/// The processes of this machine.
#[derive(Debug, Clone)]
pub enum Processes {
    /// All of them.
    Seen(Vec<RunningProcess>),
    /// They cannot be listed, for this reason.
    Hidden(String),
}

/// One live process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningProcess {
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id.
    pub parent: i32,
    /// The programs it runs.
    pub runs: Vec<ProgramName>,
    /// The beginning of its command line, without secrets.
    pub command: String,
    /// The time between boot and its start.
    pub started: Duration,
    /// The container it runs in, if any.
    pub container: Option<String>,
    /// Its open handles; `None` if this user may not see them.
    pub handles: Option<Handles>,
}

/// The open handles of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handles {
    /// The inodes of its sockets.
    pub sockets: Vec<u64>,
    /// Its working directory and its open files.
    pub files: Vec<PathBuf>,
    /// The inode of its network namespace.
    pub network: u64,
}

impl RunningProcess {
    /// Returns the first of its programs that matches one of the patterns.
    pub(super) fn runs_one_of(&self, programs: &[NamePattern]) -> Option<&ProgramName> {
        self.runs.iter().find(|run| programs.iter().any(|program| program.matches(&run.name)))
    }

    /// Returns one of its files that lies below one of these directories.
    pub(super) fn file_below(&self, directories: &[PathBuf]) -> Option<&Path> {
        let is_below = |file: &&PathBuf| directories.iter().any(|it| file.starts_with(it));
        self.handles.as_ref()?.files.iter().find(is_below).map(PathBuf::as_path)
    }
}

impl Processes {
    /// Lists all processes of this machine.
    pub fn seen_here() -> Self {
        match seen() {
            Ok(running) => Self::Seen(running),
            Err(error) => Self::Hidden(format!("processes are hidden here ({error})")),
        }
    }
}

fn seen() -> io::Result<Vec<RunningProcess>> {
    // Where processes of other users are hidden, process 1 is hidden too.
    fs::read("/proc/1/cmdline")?;
    let masker = Masker::new(&Secrets::new());
    let mut running = Vec::new();
    for pid in os::all_pids()? {
        match process(pid, &masker) {
            Ok(found) => running.extend(found),
            Err(error) if os::is_no_process(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(running)
}

/// Reads one process; returns `None` for kernel threads and dead processes.
fn process(pid: i32, masker: &Masker) -> io::Result<Option<RunningProcess>> {
    let args = args_of(&command_line(pid)?);
    let file = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let runs = run_by(&args, file.as_ref().and_then(|file| file.to_str()));
    if runs.is_empty() {
        return Ok(None);
    }
    let stat = os::process_stat(pid)?;
    if stat.is_dead() {
        return Ok(None);
    }
    let line: String = args.join(" ").chars().take(SEARCHED).collect();
    let command: String = masker.mask(&line).as_str().chars().take(SHOWN).collect();
    let groups = fs::read(format!("/proc/{pid}/cgroup"))?;
    let container = container_in(&String::from_utf8_lossy(&groups));
    let started = os::since_boot(stat.started_ticks);
    let handles = handles(pid).ok();
    Ok(Some(RunningProcess {
        pid,
        parent: stat.parent,
        runs,
        command,
        started,
        container,
        handles,
    }))
}

/// Reads a command line.
///
/// A program that was just started has none for an instant. Then it is read again; otherwise a
/// starting harness would be missed.
fn command_line(pid: i32) -> io::Result<Vec<u8>> {
    for _ in 0..STARTING_READS {
        let line = fs::read(format!("/proc/{pid}/cmdline"))?;
        let is_starting = line.is_empty() && fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        if !is_starting {
            return Ok(line);
        }
        std::thread::sleep(STARTING_PAUSE);
    }
    Ok(Vec::new())
}

fn args_of(line: &[u8]) -> Vec<String> {
    let args = line.split(|byte| *byte == 0).filter(|arg| !arg.is_empty());
    args.map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
}

/// Reads the open handles of a process; only its own user and root may.
fn handles(pid: i32) -> io::Result<Handles> {
    let network = fs::metadata(format!("/proc/{pid}/ns/net"))?.ino();
    let mut handles = Handles { network, ..Handles::default() };
    handles.files.push(fs::read_link(format!("/proc/{pid}/cwd"))?);
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor that was closed meanwhile is skipped.
        let Ok(target) = entry.and_then(|entry| fs::read_link(entry.path())) else { continue };
        match target.to_str().and_then(socket_inode) {
            Some(inode) => handles.sockets.push(inode),
            None if target.is_absolute() => handles.files.push(target),
            None => {}
        }
    }
    Ok(handles)
}

fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the id of the container that a process's control groups name, if any.
fn container_in(groups: &str) -> Option<String> {
    let mut parts = groups.split(|c: char| !c.is_ascii_alphanumeric());
    let is_id = |part: &&str| {
        part.len() == CONTAINER_ID && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    // Engines in containers nest: the last id is the innermost.
    parts.rfind(is_id).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Reading;

    #[test]
    fn a_control_group_names_the_innermost_container() {
        let id = "ab".repeat(32);
        let outer = "cd".repeat(32);
        assert_eq!(
            container_in(&format!("0::/system.slice/docker-{id}.scope\n")),
            Some(id.clone())
        );
        assert_eq!(container_in(&format!("4:cpu:/docker/{outer}/docker/{id}\n")), Some(id));
        assert_eq!(container_in("0::/user.slice/user-0.slice\n"), None);
    }

    #[test]
    fn this_process_is_seen_with_what_it_holds_open() {
        let directory = tempfile::tempdir().unwrap();
        let _file = fs::File::create(directory.path().join("open")).unwrap();
        let Processes::Seen(running) = Processes::seen_here() else { panic!("procfs is hidden") };
        let pid = rustix::process::getpid().as_raw_pid();
        let me = running.iter().find(|one| one.pid == pid).expect("this process runs");
        assert!(me.started <= Reading::now().boot);
        assert!(me.file_below(&[directory.path().to_owned()]).is_some());
        assert_eq!(me.file_below(&[PathBuf::from("/nowhere")]), None);
    }

    #[test]
    fn a_command_line_is_shown_without_its_secrets() {
        let token = format!("ghp_{}", "a1B2".repeat(9));
        let mut child = std::process::Command::new("sleep");
        std::os::unix::process::CommandExt::arg0(&mut child, "harness");
        let mut child = child.args(["1000"]).env("X", "y").spawn().unwrap();
        let shown = Masker::new(&Secrets::new()).mask(&format!("harness --key {token}"));
        assert!(!shown.as_str().contains(&token));
        let pid = i32::try_from(child.id()).unwrap();
        let found = process(pid, &Masker::new(&Secrets::new())).unwrap().unwrap();
        assert_eq!(found.command, "harness 1000");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
