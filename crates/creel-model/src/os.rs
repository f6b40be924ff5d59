//! Facts that only the operating system knows: processes, boots, namespaces.
//!
//! Linux only. Everything here is a read of `/proc` or one system call. The results may be out of
//! date by the time they are used, so callers that act on a process hold a pidfd or compare its
//! start time first.
//!
//! This is also the only module that may use `unsafe`. It does so for [`unshare`] and
//! [`close_inherited`]: these system calls can take file descriptors away from other owners in the
//! process, so the safe libraries do not offer them. It also does so for [`range_lock`],
//! [`loop_device`] and [`file_handle`], which the safe libraries do not offer yet.

mod file_handle;
pub mod loop_device;
pub mod range_lock;

pub use file_handle::file_handle;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::thread::UnshareFlags;
use rustix::time::{ClockId, clock_gettime};

/// A process identity that cannot be confused with a later process of the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ProcessKey {
    /// The process id in the pid namespace of this process.
    pub pid: i32,
    /// Clock ticks between boot and the start of the process.
    pub started_ticks: u64,
}

/// The fields of `/proc/PID/stat` that this crate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// The state letter. `Z` and `X` mean that at least the first thread has ended.
    pub state: char,
    /// The parent's process id.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The session.
    pub session: i32,
    /// The processor time of the process and of the children it waited for, in clock ticks.
    pub used_ticks: u64,
    /// The number of threads.
    pub threads: u64,
    /// Clock ticks between boot and the start of the process.
    pub started_ticks: u64,
}

impl ProcessStat {
    /// Returns whether the process has ended and only waits to be reaped.
    ///
    /// A process whose first thread has ended appears as a zombie while its other threads still
    /// run.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }

    fn has_lost_first_thread(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

impl ProcessKey {
    /// Returns the key of a process that exists now.
    ///
    /// # Errors
    ///
    /// Fails when there is no such process or `/proc` cannot be read.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started_ticks: process_stat(pid)?.started_ticks })
    }

    /// Returns the key of this process.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn of_this_process() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_pid())
    }

    /// Returns whether this exact process still runs. A zombie does not.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn is_alive(&self) -> io::Result<bool> {
        self.runs(|stat| !stat.is_dead())
    }

    /// Returns whether the first thread of this exact process still runs.
    ///
    /// A creel process lives as long as its first thread. Other threads that a kill has not reached
    /// yet do no further work.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn has_first_thread(&self) -> io::Result<bool> {
        self.runs(|stat| !stat.has_lost_first_thread())
    }

    fn runs(&self, is_there: impl FnOnce(&ProcessStat) -> bool) -> io::Result<bool> {
        match process_stat(self.pid) {
            Ok(stat) => Ok(stat.started_ticks == self.started_ticks && is_there(&stat)),
            Err(error) if is_no_process(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether a read of `/proc/PID/…` failed because the process is gone.
pub fn is_no_process(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
///
/// Fails when there is no such process, or when the file does not have the documented format.
pub fn process_stat(pid: i32) -> io::Result<ProcessStat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not understood"))
    })
}

fn parse_stat(text: &[u8]) -> Option<ProcessStat> {
    // The command name may contain any bytes. The fields start after the last `)`.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&text[name_end + 1..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let used = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok());
    Some(ProcessStat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        used_ticks: used.sum::<Option<u64>>()?,
        threads: fields.get(17)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Returns the ids of all processes that `/proc` shows.
///
/// # Errors
///
/// Fails when `/proc` cannot be read.
pub fn all_pids() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the time between boot and a process start given in clock ticks.
pub fn since_boot(started_ticks: u64) -> Duration {
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(started_ticks.saturating_mul(1000) / ticks_per_second)
}

/// Returns when a process of this boot started, in milliseconds since the epoch.
pub fn started_at_ms(process: &ProcessKey) -> i64 {
    let since_boot = clock_gettime(ClockId::Boottime);
    let since_boot_ms = since_boot.tv_sec * 1000 + since_boot.tv_nsec / 1_000_000;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let started_ms = process.started_ticks.saturating_mul(1000) / ticks_per_second;
    let age_ms = since_boot_ms - i64::try_from(started_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::now().as_millisecond() - age_ms.max(0)
}

/// Returns the id of this boot.
///
/// # Errors
///
/// Fails when `/proc` cannot be read.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Returns an id of this machine that survives a reboot, or the boot id where there is none.
///
/// # Errors
///
/// Fails when `/proc` cannot be read.
pub fn host_id() -> io::Result<String> {
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        if let Ok(id) = fs::read_to_string(path)
            && !id.trim().is_empty()
        {
            return Ok(id.trim().to_owned());
        }
    }
    boot_id()
}

/// Returns the inode of this process's pid namespace.
///
/// # Errors
///
/// Fails when `/proc` cannot be read.
pub fn pid_namespace() -> io::Result<u64> {
    Ok(fs::metadata(Path::new("/proc/self/ns/pid"))?.ino())
}

/// Writes a file atomically and durably.
///
/// # Errors
///
/// Fails when the directory or the file cannot be written. An existing file is then untouched.
pub fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file_name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let draft = directory.join(format!(".{file_name}.{}", uuid::Uuid::new_v4().simple()));
    let written = fs::File::create_new(&draft).and_then(|mut file| {
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    });
    if written.is_err() {
        // The draft is ours and useless. The first error is the one to report.
        let _ = fs::remove_file(&draft);
        return written;
    }
    fs::File::open(directory)?.sync_all()
}

/// Moves this thread into new namespaces. A new pid namespace applies to its future children.
///
/// # Errors
///
/// Fails where the system does not allow it, and always for [`UnshareFlags::FILES`].
#[expect(unsafe_code, reason = "rustix offers this system call only as an unsafe function")]
pub fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    if namespaces.contains(UnshareFlags::FILES) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: only a private table of file descriptors can break other threads, and that flag is
    // rejected above.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }?;
    Ok(())
}

/// Closes every file descriptor except the standard three.
///
/// Call this first in a process that outlives its parent. An inherited pipe would otherwise keep
/// its reader waiting, and every child would inherit it too.
///
/// # Errors
///
/// Fails when `/proc` cannot be read.
#[expect(unsafe_code, reason = "descriptors without an owner in this process have no safe close")]
pub fn close_inherited() -> io::Result<()> {
    let entries = fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The descriptor that listed them is in the list, and is closed by now.
    let is_open =
        |descriptor: &i32| fs::symlink_metadata(format!("/proc/self/fd/{descriptor}")).is_ok();
    for descriptor in open.into_iter().filter(|one| *one > 2).filter(is_open) {
        // SAFETY: the caller has opened nothing yet, so no code in this process owns these
        // descriptors.
        unsafe { rustix::io::close(descriptor) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let text = b"42 (a) b (c)) S 7 8 9 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 4711 0 0";
        let stat = parse_stat(text).expect("the line is well formed");
        assert_eq!((stat.state, stat.parent, stat.started_ticks), ('S', 7, 4711));
        assert_eq!(stat.used_ticks, 10);
    }

    /// Otherwise a process could hide from those that have to end it.
    #[test]
    fn a_process_is_read_whatever_the_bytes_of_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(OsStr::from_bytes(b"\xff\xfe) x"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("1000").spawn().unwrap();
        let stat = process_stat(i32::try_from(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stat.unwrap().parent, rustix::process::getpid().as_raw_pid());
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_not_dead_while_others_work() {
        let text = b"42 (go) Z 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 4711 0 0";
        let stat = parse_stat(text).expect("the line is well formed");
        assert!(!stat.is_dead());
        assert!(ProcessStat { threads: 1, ..stat }.is_dead());
        // A creel process in this state is being killed.
        assert!(stat.has_lost_first_thread());
    }

    #[test]
    fn this_process_is_alive_and_another_start_time_is_not() {
        let key = ProcessKey::of_this_process().expect("procfs is mounted");
        assert!(key.is_alive().expect("procfs is mounted"));
        let earlier = ProcessKey { started_ticks: key.started_ticks + 1, ..key };
        assert!(!earlier.is_alive().expect("procfs is mounted"));
    }
}
