//! Shared test helpers: a private home, and checks for everything that it could leave behind.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use creel_ledger::OwnerRecord;
use creel_model::crashpoint::Crashpoint;
use creel_model::labels;
use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::docker::Labels;
use creel_testkit::engine::Engine;
use creel_testkit::inventory::Inventory;
use creel_testkit::wait::{eventually, eventually_some};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tempfile::TempDir;

/// The label that names the ledger under which an object was created.
pub(crate) const LEDGER_LABEL: &str = "dev.creel.ledger";
/// The time limit for an expected condition on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A process that ends with the test.
pub(crate) struct Ending(pub(crate) Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // The test may have ended it already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A private state directory, and the binary that uses it.
///
/// Processes of the binary that outlive the test are ended on drop.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) creel: Creel,
    directory: TempDir,
}

impl Home {
    /// Creates a home with this engine.
    pub(crate) fn on(engine: &Engine) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let creel = Creel::new(env!("CARGO_BIN_EXE_creel"), directory.path(), engine.host());
        fs::create_dir(creel.state()).unwrap();
        Self { creel, directory }
    }

    /// Creates a home without an engine.
    pub(crate) fn without_engine() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let creel = Creel::without_docker(env!("CARGO_BIN_EXE_creel"), directory.path());
        fs::create_dir(creel.state()).unwrap();
        Self { creel, directory }
    }

    /// Returns the same home with another address of its engine.
    pub(crate) fn moved_to(mut self, engine: &Engine) -> Self {
        self.creel = self.creel.clone().env("DOCKER_HOST", engine.host());
        self
    }

    /// Returns a path in the home, outside of the state directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the settings.
    pub(crate) fn configure(&self, settings: &str) {
        fs::write(self.creel.state().join("config.toml"), settings).unwrap();
    }

    /// Acquires resources and waits until they are held.
    pub(crate) fn hold(&self, arguments: &[&str]) -> Holding {
        self.hold_within(PATIENCE, arguments)
    }

    /// Acquires resources like [`Home::hold`], with another timeout.
    pub(crate) fn hold_within(&self, timeout: Duration, arguments: &[&str]) -> Holding {
        let running = self.creel.spawn([&["dev", "hold"], arguments].concat());
        let report = eventually_some(timeout, || serde_json::from_str(&running.stdout()).ok());
        let report = report.unwrap_or_else(|| panic!("nothing is held: {}", running.stderr()));
        Holding { running, report }
    }

    /// Returns the id of this home's ledger.
    pub(crate) fn ledger_id(&self) -> String {
        let answer = self.creel.run(["ledger", "--json"]).expect_code(0).json();
        answer["ledger"].as_str().unwrap().to_owned()
    }

    /// Returns every record, closed ones included.
    pub(crate) fn records(&self) -> Vec<Value> {
        let answer = self.creel.run(["ledger", "--all", "--json"]).expect_code(0).json();
        answer["records"].as_array().unwrap().clone()
    }

    /// Returns the records that are neither gone nor lost.
    pub(crate) fn open_records(&self) -> Vec<Value> {
        let is_open = |record: &Value| record["state"] != "gone" && record["state"] != "lost";
        self.records().into_iter().filter(is_open).collect()
    }

    /// Returns the labels of a record's object, with an owner that has ended.
    pub(crate) fn labels_of(&self, record: &Value) -> Labels {
        let mut owner = OwnerRecord::this_process("ended").unwrap().owner;
        owner.process.started_ticks = 1;
        let pairs = [
            (labels::RESOURCE, record["resource"].as_str().unwrap().to_owned()),
            (labels::LEDGER, self.ledger_id()),
            (labels::OWNER, owner.to_string()),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Returns the events of a resource.
    pub(crate) fn events(&self, resource: &str) -> Vec<Value> {
        let answer = self.creel.run(["ledger", "show", resource, "--json"]).expect_code(0).json();
        answer["events"].as_array().unwrap().clone()
    }

    /// Returns the events of the resource that was recorded last.
    pub(crate) fn last_events(&self) -> Vec<Value> {
        let resource = self.records().last().map(|record| record["resource"].clone());
        resource.map(|id| self.events(id.as_str().unwrap())).unwrap_or_default()
    }

    /// Returns the content of the ledger in a comparable form.
    pub(crate) fn ledger_state(&self) -> (Vec<Value>, Vec<Value>) {
        let comparable = |record: Value| {
            serde_json::json!([
                record["resource"],
                record["state"],
                record["changed_at"],
                record["owner"]["pid"]
            ])
        };
        (self.records().into_iter().map(comparable).collect(), self.last_events())
    }

    /// Acquires and releases the resources of the flags, and dies at a crashpoint.
    /// Returns how the process ended, and whether it got there.
    pub(crate) fn hold_until(&self, point: Crashpoint, flags: &[&str]) -> (Output, bool) {
        let mark = self.path("mark");
        let _ = fs::remove_file(&mark);
        let creel = self.creel.clone().env("CREEL_CRASHPOINT", point.name());
        let hold = [&["dev", "hold", "--for", "0s"], flags].concat();
        let output = creel.env("CREEL_CRASHPOINT_MARK", &mark).run(hold);
        let reached = text_of(&mark) == point.name();
        (output, reached)
    }

    /// Starts to acquire and release resources, and waits until it has stopped at a crashpoint.
    /// SIGCONT resumes it.
    pub(crate) fn hold_stopped_at(&self, point: Crashpoint, flags: &[&str]) -> Running {
        let mark = self.path("mark");
        let _ = fs::remove_file(&mark);
        let creel = self.creel.clone().env("CREEL_CRASHPOINT", format!("{}:stop", point.name()));
        let creel = creel.env("CREEL_CRASHPOINT_MARK", &mark);
        let hold = ["dev", "hold", "--no-watchdog", "--for", "0s"];
        let running = creel.spawn([&hold[..], flags].concat());
        let stopped = eventually(PATIENCE, || mark.exists() && is_stopped(running.pid()));
        assert!(stopped, "it does not stop at {}: {}", point.name(), running.stderr());
        running
    }

    /// Reconciles. Either everything is done, or a create may still land.
    #[track_caller]
    pub(crate) fn reconcile_or_wait(&self) {
        let output = self.creel.run(["reconcile", "--json"]);
        let code = if output.json()["waiting"] == serde_json::json!([]) { 0 } else { 3 };
        output.expect_code(code);
    }

    /// Returns the objects of this home's ledger that exist on an engine.
    pub(crate) fn on_engine(&self, engine: &Engine) -> Inventory {
        Inventory::snapshot(engine).unwrap().with_label(LEDGER_LABEL, &self.ledger_id())
    }

    /// Returns the leftovers of the process provider on this machine, one line each.
    pub(crate) fn on_machine(&self) -> Vec<String> {
        let mut left = Vec::new();
        if let Ok(entries) = fs::read_dir(self.creel.state().join("sandboxes")) {
            left.extend(entries.flatten().map(|entry| format!("file {}", entry.path().display())));
        }
        let (marked, groups) = (assignments_of("CREEL_RESOURCE"), control_groups());
        for record in self.records() {
            let (resource, name) = (record["resource"].as_str().unwrap(), &record["name"]);
            let processes = marked.iter().filter(|(_, value)| value == resource);
            left.extend(processes.map(|(pid, _)| format!("process {pid} of {resource}")));
            let groups = groups.iter().filter(|path| path.ends_with(name.as_str().unwrap()));
            left.extend(groups.map(|path| format!("control group {}", path.display())));
        }
        left
    }

    /// Waits until no process of the binary uses this home any more.
    pub(crate) fn await_quiet(&self) {
        let quiet = eventually(PATIENCE, || self.processes().is_empty());
        assert!(quiet, "still running: {:?}", self.processes());
    }

    /// Returns the pids of all processes of the binary that use this home.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let state = self.creel.state();
        let ours = assignments_of("CREEL_HOME").into_iter().filter(|(_, value)| **value == *state);
        ours.map(|(pid, _)| pid).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A failed test leaves its resources behind. Reconcile releases them most quickly.
        for pid in self.processes() {
            kill(pid);
        }
        if std::thread::panicking() {
            // A second panic that leaves a destructor would end the program with all other tests.
            let reconcile = AssertUnwindSafe(|| self.creel.run(["reconcile"]));
            let _ = catch_unwind(reconcile);
        }
    }
}

/// A process that holds the requested resources.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) running: Running,
    /// Its output when everything was held.
    pub(crate) report: Value,
}

impl Holding {
    /// Returns the resources it holds.
    pub(crate) fn resources(&self) -> Vec<String> {
        let held = self.report["held"].as_array().unwrap();
        held.iter().map(|one| one["resource"].as_str().unwrap().to_owned()).collect()
    }

    /// Kills its watchdog, so that no process is left to reclaim.
    pub(crate) fn kill_watchdog(&self) {
        let pid = self.report["watchdog"].as_i64().unwrap();
        kill(i32::try_from(pid).unwrap());
    }
}

/// Asserts that a command was ended by SIGKILL.
#[track_caller]
pub(crate) fn assert_killed(output: &Output) {
    assert_eq!(output.status.signal(), Some(9), "it was not killed\n{output}");
}

/// Kills one process.
pub(crate) fn kill(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

/// Returns whether all threads of a process are stopped by a signal.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut states = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")));
    states.all(|status| status.is_ok_and(|status| status.contains("State:\tT")))
}

/// Returns the processes that have a variable in their environment, with its value.
pub(crate) fn assignments_of(variable: &str) -> Vec<(i32, String)> {
    let value_in = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut entries = environment.split(|byte| *byte == 0);
        let value = entries
            .find_map(|entry| entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"="))?;
        Some((pid, String::from_utf8_lossy(value).into_owned()))
    };
    let names = fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(value_in).collect()
}

/// Returns the control groups with a name of ours in all hierarchies.
fn control_groups() -> Vec<PathBuf> {
    let arguments = ["/sys/fs/cgroup", "-type", "d", "-name", "creel-*"];
    let found = Command::new("find").args(arguments).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Returns the content of a file, or an empty text if it does not exist.
pub(crate) fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Makes a label or name unique to this run, because a failed run may have left its objects behind.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}.{}", std::process::id())
}
