//! Shared test helpers: a separate root, requests, and waits with a deadline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use creel_model::os;
use creel_model::provider::{
    CreateRequest, Kind, Observed, ProcessSpec, Provider, ReleaseMode, Released, Spec,
};
use creel_process::{Containment, ProcessProvider};
use rustix::process::getpid;
use tempfile::TempDir;

use crate::requests::provider_at;
pub(crate) use crate::requests::{command, directory, wait};

/// The program that holds trees, and that is a supervisor which dies.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_creel-process-test-helper");

/// A provider with its own root.
pub(crate) struct ProcessFixture {
    home: TempDir,
    pub(crate) provider: ProcessProvider,
}

impl ProcessFixture {
    /// Creates a provider that uses the best containment.
    pub(crate) fn new() -> Self {
        Self::with(None)
    }

    /// Creates a provider that uses this containment.
    pub(crate) fn with(containment: Option<Containment>) -> Self {
        let home = tempfile::tempdir().expect("a directory can be made");
        let provider = provider_at(&home.path().join("sandboxes"), containment, HELPER);
        Self { home, provider }
    }

    /// Creates a provider whose root is on a file system of its own, mounted by `mount`.
    pub(crate) fn on_disk(mount: impl FnOnce(&Path, &Path)) -> Self {
        let fixture = Self::new();
        fs::create_dir(fixture.root()).expect("the name is free");
        mount(&fixture.home.path().join("image"), &fixture.root());
        fixture
    }

    /// Returns the provider's root.
    pub(crate) fn root(&self) -> PathBuf {
        self.home.path().join("sandboxes")
    }

    /// Returns a path outside of the root.
    pub(crate) fn outside(&self) -> PathBuf {
        self.home.path().join("outside")
    }

    /// Returns another provider on the same root, as the next supervisor would have.
    pub(crate) fn successor(&self) -> ProcessProvider {
        provider_at(&self.root(), None, HELPER)
    }

    /// Inspects one process tree.
    pub(crate) fn process(&self, id: &str) -> Option<Observed> {
        wait(self.provider.inspect(Kind::Process, id)).expect("procfs is mounted")
    }

    /// Releases a tree at once and asserts that it is gone.
    pub(crate) fn release(&self, id: &str) {
        release_by(&self.provider, id);
    }

    /// Asserts that no file is left below the root.
    pub(crate) fn assert_empty(&self) {
        let left: Vec<_> = match fs::read_dir(self.root()) {
            Ok(entries) => entries.map(|entry| entry.expect("readable").file_name()).collect(),
            Err(_) => Vec::new(),
        };
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// Releases a tree at once and asserts that it is gone.
pub(crate) fn release_by(provider: &ProcessProvider, id: &str) {
    let released = wait(provider.release(Kind::Process, id, ReleaseMode::AT_ONCE));
    assert_eq!(released.expect("the tree can be ended"), Released::Done);
    assert_eq!(wait(provider.inspect(Kind::Process, id)).expect("procfs is mounted"), None);
    let again = wait(provider.release(Kind::Process, id, ReleaseMode::AT_ONCE));
    assert_eq!(again.expect("twice is fine"), Released::AlreadyGone);
    assert!(groups_named(id).is_empty(), "control groups are left");
}

/// Returns a request for a tree that runs a shell script.
pub(crate) fn script(text: &str) -> CreateRequest {
    command(&["sh", "-c", text])
}

/// Returns the process part of a request, to change it.
pub(crate) fn process_of(request: &mut CreateRequest) -> &mut ProcessSpec {
    match &mut request.spec {
        Spec::Process(spec) => spec,
        other => panic!("{other:?} is no process"),
    }
}

/// Returns a number of seconds that no other process on this machine sleeps for.
pub(crate) fn odd_seconds() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}.{}", 70_000 + COUNT.fetch_add(1, Ordering::SeqCst), getpid().as_raw_pid())
}

/// Returns how many processes sleep for exactly this many seconds.
pub(crate) fn sleeper_count(seconds: &str) -> usize {
    sleepers(seconds).len()
}

/// Returns the processes that sleep for exactly this many seconds.
pub(crate) fn sleepers(seconds: &str) -> Vec<i32> {
    let expected = format!("sleep\0{seconds}\0").into_bytes();
    let pids = os::all_pids().expect("procfs is mounted");
    let sleeps = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == expected)
            && os::process_stat(*pid).is_ok_and(|stat| !stat.is_dead())
    };
    pids.into_iter().filter(sleeps).collect()
}

/// Waits until a condition holds, and panics after the deadline.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "in 20 s not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the control groups with this name in all hierarchies.
pub(crate) fn groups_named(name: &str) -> Vec<PathBuf> {
    let output =
        Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", name]).output();
    let text = String::from_utf8(output.expect("find is installed").stdout).expect("plain paths");
    text.lines().map(PathBuf::from).collect()
}

/// Returns whether this process may mount.
pub(crate) fn may_mount() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Starts a supervisor in its own process. It creates a resource, releases it if the crashpoint is
/// part of a release, and is killed.
pub(crate) fn die_during_create(fixture: &ProcessFixture, request: &CreateRequest, point: &str) {
    let what = match &request.spec {
        Spec::Process(spec) => spec.command.last().expect("the script's sleep").clone(),
        Spec::Directory => "directory".to_owned(),
        Spec::Disk { bytes } => format!("disk={bytes}"),
        other => panic!("{other:?} is not a process resource"),
    };
    let status = Command::new(HELPER)
        .args(["supervisor", &fixture.root().display().to_string()])
        .args([request.resource.to_string(), format!("{point}:{what}")])
        .stdin(Stdio::null())
        .status()
        .expect("the helper can be started");
    assert!(!status.success(), "the supervisor must have been killed");
}
