//! What runs on this machine, as far as it can be seen.

use std::fs;
use std::io;

use jiff::Timestamp;

use crate::os::{self, ProcessKey};
use crate::select::NamePattern;

/// How many words of a command line may name its program: launchers such as
/// `uv run --python 3.12 python -m inspect_ai` put a few before it.
const WORDS: usize = 8;
/// How many hex digits the id of a container has.
const CONTAINER_ID: usize = 64;

/// What runs on this machine.
#[derive(Debug, Clone)]
pub enum Processes {
    /// All of it.
    Seen(Vec<Running>),
    /// It cannot be told, for this reason.
    Hidden(String),
}

/// One live process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its id here.
    pub pid: i32,
    /// Its program, for messages.
    pub program: String,
    /// The names among the first words of its command line.
    pub names: Vec<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// The container it runs in, if it does.
    pub container: Option<String>,
}

impl Running {
    /// Returns whether its command line names one of these programs.
    pub(super) fn is_one_of(&self, programs: &[NamePattern]) -> bool {
        self.names.iter().any(|name| programs.iter().any(|program| program.matches(name)))
    }
}

impl Processes {
    /// Looks at all processes of this machine.
    pub fn seen_here() -> Self {
        match seen() {
            Ok(running) => Self::Seen(running),
            Err(error) => Self::Hidden(format!("processes are hidden here ({error})")),
        }
    }
}

fn seen() -> io::Result<Vec<Running>> {
    // Where other people's processes are hidden, that of the first one is too.
    fs::read("/proc/1/cmdline")?;
    let mut running = Vec::new();
    for pid in os::all_pids()? {
        match process(pid) {
            Ok(found) => running.extend(found),
            Err(error) if os::is_no_process(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(running)
}

/// Reads one process; kernel threads and the dead have no command line.
fn process(pid: i32) -> io::Result<Option<Running>> {
    let words = fs::read(format!("/proc/{pid}/cmdline"))?;
    let names = names_in(&words);
    let Some(program) = names.first().cloned() else { return Ok(None) };
    let stat = os::process_stat(pid)?;
    if stat.is_dead() {
        return Ok(None);
    }
    let started_ms = os::started_at_ms(&ProcessKey { pid, started_ticks: stat.started_ticks });
    let started_at = Timestamp::from_millisecond(started_ms)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let container = container_in(&fs::read_to_string(format!("/proc/{pid}/cgroup"))?);
    Ok(Some(Running { pid, program, names, started_at, container }))
}

/// Returns the names among the first words of a command line: the last part of each path,
/// without `.py`. What follows the word `creel` is creel's own: `creel sweep --recipe harbor`
/// is no harbor.
fn names_in(words: &[u8]) -> Vec<String> {
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(WORDS);
    let mut names = Vec::new();
    for word in words {
        let word = String::from_utf8_lossy(word);
        let name = word.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".py").unwrap_or(name).to_owned();
        let is_ours = name == "creel";
        names.push(name);
        if is_ours {
            break;
        }
    }
    names
}

/// Returns the id of the container that a process's control groups name, if they do.
fn container_in(groups: &str) -> Option<String> {
    let mut parts = groups.split(|c: char| !c.is_ascii_alphanumeric());
    let is_id = |part: &&str| {
        part.len() == CONTAINER_ID && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    // Engines in containers nest: the last one is the innermost.
    parts.rfind(is_id).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_name_the_program() {
        let names = |line: &str| names_in(line.replace(' ', "\0").as_bytes());
        assert_eq!(names("/usr/bin/python3 /opt/bin/harbor run")[1], "harbor");
        assert_eq!(
            names("python -m swebench.harness.run_evaluation")[2],
            "swebench.harness.run_evaluation"
        );
        assert_eq!(names("python ./run_evaluation.py")[1], "run_evaluation");
        assert_eq!(names("sudo creel sweep --recipe harbor"), ["sudo", "creel"]);
        assert_eq!(names("").len(), 0);
    }

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
    fn this_process_is_seen() {
        let Processes::Seen(running) = Processes::seen_here() else { panic!("procfs is hidden") };
        let pid = rustix::process::getpid().as_raw_pid();
        let me = running.iter().find(|one| one.pid == pid).expect("this process runs");
        assert!(me.started_at <= Timestamp::now());
    }
}
