//! A full disk under CREEL_HOME: what fills it is released and named, decoys stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::engine::Engine;
use creel_testkit::wait::eventually;
use creel_testkit::world::{Inventory, World};
use serde_json::Value;

use crate::small_disk::{SmallDisk, fill};
use crate::support::{Holding, Home, LEDGER_LABEL, PATIENCE, is_stopped};

/// Timeout for a command with a thousand records on a loaded machine.
const LONG: Duration = Duration::from_secs(300);

/// Things beside the ledger that are not creel's.
pub(crate) struct Decoys(Vec<PathBuf>);

impl Decoys {
    pub(crate) fn plant(state: &Path) -> Self {
        let directory = state.join("decoy");
        fs::create_dir(&directory).unwrap();
        let files = [directory.join("mine"), state.join("mine.db")];
        files.iter().for_each(|file| fs::write(file, "mine").unwrap());
        Self(files.to_vec())
    }

    #[track_caller]
    pub(crate) fn assert_untouched(&self) {
        for file in &self.0 {
            assert_eq!(fs::read_to_string(file).unwrap(), "mine", "{}", file.display());
        }
    }
}

/// A home on a small disk; the disk goes first.
pub(crate) struct Scene {
    pub(crate) disk: SmallDisk,
    pub(crate) decoys: Decoys,
    pub(crate) home: Home,
}

impl Scene {
    fn on(make: impl FnOnce(&Home) -> SmallDisk) -> Self {
        Self::of(Home::without_engine(), make)
    }

    /// Sets up a home with an engine and a small disk.
    pub(crate) fn with_engine(engine: &Engine) -> Self {
        Self::of(Home::on(engine), |home| SmallDisk::tmpfs(&home.creel.state(), "48m"))
    }

    fn of(home: Home, make: impl FnOnce(&Home) -> SmallDisk) -> Self {
        let disk = make(&home);
        let decoys = Decoys::plant(&home.creel.state());
        Self { disk, decoys, home }
    }

    pub(crate) fn tmpfs() -> Self {
        Self::on(|home| SmallDisk::tmpfs(&home.creel.state(), "48m"))
    }

    fn ext4() -> Self {
        Self::on(|home| SmallDisk::ext4(&home.creel.state(), &home.path("disk.img"), 64))
    }

    pub(crate) fn ballast(&self) -> PathBuf {
        self.home.creel.state().join("ledger.ballast")
    }

    /// Starts a run whose agent does this.
    pub(crate) fn start(&self, script: &str) -> Running {
        self.start_with(&self.home.creel, script)
    }

    /// Starts a run whose agent does this, with JSON or with text as its output.
    pub(crate) fn start_as(&self, is_json: bool, script: &str) -> Running {
        let path = self.write_workflow(script);
        let flags: &[&str] = if is_json { &["--json"] } else { &[] };
        self.home.creel.spawn([&["run"], flags, &[path.to_str().unwrap()]].concat())
    }

    fn start_with(&self, creel: &Creel, script: &str) -> Running {
        let path = self.write_workflow(script);
        creel.spawn(["run", "--json", path.to_str().unwrap()])
    }

    fn write_workflow(&self, script: &str) -> PathBuf {
        let path = self.home.path("workflow.toml");
        let text = format!(
            "name = \"full\"\n[runtime]\nkind = \"command\"\ncheck = [\"true\"]\n\
             command = [\"sh\", \"-c\", 'touch {}; cat > /dev/null; {script}']\n\
             [limits]\nwall = \"2m\"\n[task]\nprompt = \"Look around\"\n",
            self.home.path("began").display()
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Holds a directory and kills the holder; returns the resource and the directory.
    fn leave_a_directory(&self) -> (String, PathBuf) {
        let hold = self.home.hold(&["--directory", "--no-watchdog"]);
        let found = self.directory();
        let resource = hold.resources().remove(0);
        hold.running.kill();
        (resource, found)
    }

    /// Returns the one directory that is held.
    fn directory(&self) -> PathBuf {
        let entries = fs::read_dir(self.home.creel.state().join("sandboxes")).unwrap();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.is_dir());
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// Returns the sequence numbers of one kind of event for all resources of a provider.
    fn sequence_numbers(&self, provider: &str, event: &str) -> Vec<i64> {
        let records = self.home.records().into_iter();
        let records = records.filter(|record| record["provider"] == provider);
        let events = records.flat_map(|one| self.home.events(one["resource"].as_str().unwrap()));
        let events = events.filter(|one| one["event"] == event);
        events.map(|one| one["sequence"].as_i64().unwrap()).collect()
    }

    pub(crate) fn show_last(&self) -> Value {
        self.home.creel.run(["show", "last", "--json"]).expect_code(0).json()
    }

    /// Checks that nothing is left of creel's, on the machine and on record, and all decoys are.
    #[track_caller]
    pub(crate) fn assert_clean(&self, output: &Output) {
        assert_eq!(self.home.on_machine(), Vec::<String>::new(), "{output}");
        assert_eq!(self.home.open_records(), Vec::<Value>::new(), "{output}");
        self.decoys.assert_untouched();
        self.home.creel.run(["ledger", "check"]).expect_code(0);
    }
}

/// Returns the report that a run printed last.
pub(crate) fn report_in(output: &Output) -> Value {
    let line = output.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|_| panic!("no report\n{output}"))
}

#[track_caller]
pub(crate) fn assert_disk_full(report: &Value, output: &Output) {
    assert_eq!(report["phase"], "failed", "{output}\n{report:#}");
    assert_eq!(report["cause"]["class"], "disk_full", "{output}\n{report:#}");
    assert_eq!(report["certificate"]["verified"], true, "{output}\n{report:#}");
}

/// An agent that fills the disk once, and one that goes on filling it.
const FILLERS: [&str; 2] =
    ["cat /dev/zero > big; sleep 600", "while :; do cat /dev/zero >> big; sleep 0.02; done"];

#[test]
fn a_run_whose_agent_fills_the_disk_ends_for_that_cause_and_leaves_nothing() {
    for make in [Scene::tmpfs, Scene::ext4] {
        for filler in FILLERS {
            let scene = make();
            let output = scene.start(filler).wait().expect_code(5);
            assert_disk_full(&report_in(&output), &output);
            scene.assert_clean(&output);
            assert!(scene.ballast().exists(), "the ballast was not made again: {output}");
        }
    }
}

#[test]
fn a_run_ends_when_a_foreign_file_fills_the_disk() {
    let scene = Scene::tmpfs();
    let run = scene.start("sleep 600");
    assert!(eventually(PATIENCE, || scene.home.path("began").exists()), "{}", run.stderr());
    let filler = scene.disk.fill();
    let size = fs::metadata(&filler).unwrap().len();
    let output = run.wait().expect_code(5);
    assert_disk_full(&report_in(&output), &output);
    assert_eq!(fs::metadata(&filler).unwrap().len(), size, "a foreign file was touched");
    fs::remove_file(filler).unwrap();
    scene.assert_clean(&output);
}

#[test]
fn a_disk_that_fills_up_before_the_sandbox_exists_is_the_cause() {
    let scene = Scene::tmpfs();
    let mark = scene.home.path("stopped");
    let creel = scene.home.creel.clone();
    let creel = creel.env("CREEL_CRASHPOINT", "before-intent:stop");
    let creel = creel.env("CREEL_CRASHPOINT_MARK", &mark);
    let run = scene.start_with(&creel, "true");
    assert!(eventually(PATIENCE, || mark.exists() && is_stopped(run.pid())), "{}", run.stderr());
    // What is left would do for one more row, but not to end what it begins.
    fs::remove_file(scene.ballast()).unwrap();
    let filler = scene.disk.fill();
    let size = fs::metadata(&filler).unwrap().len();
    fs::File::options().write(true).open(&filler).unwrap().set_len(size - (1 << 20)).unwrap();
    run.signal("CONT");
    let output = run.wait().expect_code(5);
    assert_disk_full(&report_in(&output), &output);
    fs::remove_file(filler).unwrap();
    scene.assert_clean(&output);
}

#[test]
fn a_run_without_any_reserve_still_gives_its_sandbox_back() {
    let scene = Scene::tmpfs();
    let run = scene.start("sleep 600");
    assert!(eventually(PATIENCE, || scene.home.path("began").exists()), "{}", run.stderr());
    fs::remove_file(scene.ballast()).unwrap();
    let filler = scene.disk.fill();
    let output = run.wait();
    // Whether everything is on record depends on how much space the release of the sandbox freed.
    let is_incomplete = output.stderr.contains("error[CR0006]: audit incomplete: ");
    assert_eq!(output.code(), Some(if is_incomplete { 3 } else { 5 }), "{output}");
    let sandboxes = scene.home.creel.state().join("sandboxes");
    let left: Vec<_> = fs::read_dir(sandboxes).unwrap().collect();
    assert!(left.is_empty(), "{left:?} {output}");
    fs::remove_file(filler).unwrap();
    scene.home.creel.run(["reconcile"]).expect_code(0);
    let shown = scene.show_last();
    assert_disk_full(&shown, &output);
    scene.assert_clean(&output);
}

#[test]
fn a_run_that_could_not_be_closed_is_closed_by_itself_when_space_returns() {
    let scene = Scene::tmpfs();
    let run = scene.start("sleep 600");
    assert!(eventually(PATIENCE, || scene.home.path("began").exists()), "{}", run.stderr());
    fs::remove_file(scene.ballast()).unwrap();
    let filler = scene.disk.fill();
    let output = run.kill();
    let sandboxes = scene.home.creel.state().join("sandboxes");
    let is_empty = || fs::read_dir(&sandboxes).unwrap().next().is_none();
    assert!(eventually(PATIENCE, is_empty), "the sandbox stays: {output}");
    // Longer than the watchdog searches for what may land late.
    std::thread::sleep(std::time::Duration::from_secs(40));
    fs::remove_file(filler).unwrap();
    // No command of creel changes anything here: `show` and `ledger` only read.
    let is_closed = || scene.show_last()["cause"]["class"] == "disk_full";
    assert!(eventually(PATIENCE, is_closed), "{:#}", scene.show_last());
    scene.home.await_quiet();
    assert_disk_full(&scene.show_last(), &output);
    scene.assert_clean(&output);
}

#[test]
fn every_command_releases_what_a_dead_owner_filled_the_disk_with() {
    for line in ["reconcile", "sweep --apply --owned"] {
        for has_ballast in [true, false] {
            let scene = Scene::tmpfs();
            let (_, directory) = scene.leave_a_directory();
            if !has_ballast {
                fs::remove_file(scene.ballast()).unwrap();
            }
            fill(&directory.join("big"));
            let output = scene.home.creel.run(line.split_whitespace()).expect_code(0);
            assert!(!directory.exists(), "{line}: {output}");
            scene.assert_clean(&output);
            assert!(scene.ballast().exists(), "{line}: the ballast was not made again");
        }
    }
}

#[test]
fn rm_takes_what_a_live_owner_fills_the_disk_with() {
    let scene = Scene::ext4();
    let hold = scene.home.hold(&["--directory"]);
    let directory = scene.directory();
    fill(&directory.join("big"));
    let resource = hold.resources().remove(0);
    let output = scene.home.creel.run(["rm", "--force", &resource]).expect_code(0);
    assert!(!directory.exists(), "{output}");
    hold.running.signal("INT");
    hold.running.wait();
    scene.assert_clean(&output);
}

#[test]
fn what_cannot_be_written_is_told_and_written_when_there_is_room() {
    for command in [&["reconcile", "--json"][..], &["sweep", "--apply", "--json"]] {
        let scene = Scene::tmpfs();
        let (_, directory) = scene.leave_a_directory();
        fs::remove_file(scene.ballast()).unwrap();
        let filler = scene.disk.fill();
        let output = scene.home.creel.run(command).expect_code(3);
        assert!(output.stderr.contains("error[CR0006]: audit incomplete: "), "{output}");
        assert!(output.json()["audit_incomplete"].as_u64().unwrap() > 0, "{output}");
        assert!(!directory.exists(), "{output}");
        scene.decoys.assert_untouched();

        fs::remove_file(filler).unwrap();
        let output = scene.home.creel.run(["reconcile"]).expect_code(0);
        scene.assert_clean(&output);
        assert!(scene.ballast().exists());
    }
}

#[test]
fn a_watchdog_gives_back_what_its_supervisor_had_on_a_full_disk() {
    for scene in [Scene::tmpfs(), Scene::ext4()] {
        let hold = scene.home.hold(&["--directory", "--process"]);
        scene.disk.fill();
        let output = hold.running.kill();
        scene.home.await_quiet();
        scene.assert_clean(&output);
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let scene = Scene::tmpfs();
    let (_, directory) = scene.leave_a_directory();
    let script = "\"$0\" -vvv reconcile 2>/dev/full";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_creel")]);
    shell.env("CREEL_HOME", scene.home.creel.state()).env_remove("DOCKER_HOST");
    assert_eq!(shell.status().unwrap().code(), Some(0));
    assert!(!directory.exists());
    assert_eq!(scene.home.open_records(), Vec::<Value>::new());
}

#[test]
fn a_driver_that_is_killed_on_a_full_disk_is_closed_with_that_cause() {
    let scene = Scene::tmpfs();
    let (go, full) = (scene.home.path("go"), scene.home.path("disk-is-full"));
    let run = scene.start(&format!(
        "while [ ! -e {} ]; do sleep 0.1; done; cat /dev/zero > big; touch {}; sleep 600",
        go.display(),
        full.display()
    ));
    assert!(eventually(PATIENCE, || scene.home.path("began").exists()), "{}", run.stderr());
    // It must not see that the disk is full: its heirs have to.
    run.signal("STOP");
    fs::write(&go, "").unwrap();
    assert!(eventually(PATIENCE, || full.exists()), "{}", run.stderr());
    let output = run.kill();
    // Whoever is first: its watchdog, or this.
    let closed = eventually(PATIENCE, || {
        scene.home.creel.run(["reconcile"]);
        scene.home.open_records().is_empty()
    });
    assert!(closed, "{:?}", scene.home.open_records());
    scene.home.await_quiet();
    assert_disk_full(&scene.show_last(), &output);
    scene.assert_clean(&output);
}

/// Holds directories, networks and volumes, and kills the holder. Returns the directories.
fn leave_mixed(scene: &Scene) -> Vec<PathBuf> {
    let flags = ["--directory", "--network", "--volume", "--count", "3", "--no-watchdog"];
    scene.home.hold(&flags).running.kill();
    let entries = fs::read_dir(scene.home.creel.state().join("sandboxes")).unwrap();
    let mut directories: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    directories.retain(|path| path.is_dir());
    assert_eq!(directories.len(), 3, "{directories:?}");
    directories
}

/// Returns the objects of a ledger that an engine still has, read from the engine itself.
pub(crate) fn left_on(engine: &Engine, ledger: &str) -> Inventory {
    World::snapshot(engine).unwrap().with_label(LEDGER_LABEL, ledger)
}

#[test]
fn objects_on_the_full_disk_are_released_before_others() {
    let engine = Engine::from_env();
    for line in ["reconcile", "sweep --apply --owned"] {
        let scene = Scene::with_engine(&engine);
        let directories = leave_mixed(&scene);
        let ledger = scene.home.ledger_id();
        assert_eq!(left_on(&engine, &ledger).len(), 6);
        for directory in &directories[1..] {
            fs::write(directory.join("some"), vec![b'x'; 1 << 20]).unwrap();
        }
        fill(&directories[0].join("big"));
        let output = scene.home.creel.run(line.split_whitespace()).expect_code(0);
        assert!(!output.stderr.contains("audit incomplete"), "{line}: {output}");

        let local = scene.sequence_numbers("process", "verified_gone");
        let elsewhere = scene.sequence_numbers("docker", "release_requested");
        assert_eq!((local.len(), elsewhere.len()), (3, 6), "{line}: {output}");
        let (last, first) = (local.iter().max(), elsewhere.iter().min());
        assert!(last < first, "{line}: {local:?} {elsewhere:?}\n{output}");
        assert!(left_on(&engine, &ledger).is_empty(), "{line}: {output}");
        scene.assert_clean(&output);
        assert!(scene.ballast().exists(), "{line}: the ballast was not made again");
    }
}

#[test]
fn without_any_reserve_objects_elsewhere_stay_and_are_reported() {
    let engine = Engine::from_env();
    for then in ["reconcile", "sweep --apply --owned"] {
        let scene = Scene::with_engine(&engine);
        let directories = leave_mixed(&scene);
        // This also empties the write-ahead log of the ledger, which would have space.
        let ledger = scene.home.ledger_id();
        let before = left_on(&engine, &ledger);
        fs::remove_file(scene.ballast()).unwrap();
        let filler = scene.disk.fill();

        let output = scene.home.creel.run(["reconcile", "--json"]).expect_code(3);
        assert!(output.stderr.contains("error[CR0006]: audit incomplete: "), "{output}");
        assert!(directories.iter().all(|directory| !directory.exists()), "{output}");
        assert_eq!(left_on(&engine, &ledger).ids(), before.ids(), "{output}");
        let status = output.json();
        assert!(status["audit_incomplete"].as_u64().unwrap() > 0, "{output}");
        let items = status["items"].as_array().unwrap();
        let results = |provider: &str| -> Vec<&str> {
            let items = items.iter().filter(|item| item["provider"] == provider);
            items.map(|item| item["result"].as_str().unwrap()).collect()
        };
        assert_eq!(results("process"), ["gone"; 3], "{output}");
        assert_eq!(results("docker"), ["failed"; 6], "{output}");
        let reasons = items.iter().filter(|item| item["provider"] == "docker");
        for reason in reasons.map(|item| item["reason"].as_str().unwrap()) {
            assert!(reason.starts_with("not tried: ") && reason.contains("full"), "{output}");
        }

        fs::remove_file(filler).unwrap();
        let output = scene.home.creel.run(then.split_whitespace()).expect_code(0);
        assert!(left_on(&engine, &ledger).is_empty(), "{then}: {output}");
        scene.assert_clean(&output);
        assert!(scene.ballast().exists(), "{then}: the ballast was not made again");
    }
}

#[test]
fn the_reserve_is_enough_for_the_rows_of_a_thousand_open_records() {
    let engine = Engine::from_env();
    let mut scene = Scene::with_engine(&engine);
    scene.home.creel = scene.home.creel.clone().deadline(LONG);
    // Unlike directories, removed volumes free no space on this disk.
    let flags = ["--volume", "--count", "250", "--no-watchdog"];
    let holders: Vec<Holding> = std::thread::scope(|scope| {
        let hold = || scope.spawn(|| scene.home.hold_within(LONG, &flags));
        let holders: Vec<_> = (0..4).map(|_| hold()).collect();
        holders.into_iter().map(|holder| holder.join().unwrap()).collect()
    });
    for holder in holders {
        holder.running.kill();
    }
    let ledger = scene.home.ledger_id();
    assert_eq!(left_on(&engine, &ledger).len(), 1000);
    let filler = scene.disk.fill();
    let size = fs::metadata(&filler).unwrap().len();
    let output = scene.home.creel.run(["reconcile", "--json"]).expect_code(0);
    assert_eq!(output.json()["items"].as_array().unwrap().len(), 1000);
    assert_eq!(output.json()["audit_incomplete"], Value::Null, "{}", output.stderr);
    assert!(left_on(&engine, &ledger).is_empty());
    assert_eq!(scene.home.open_records(), Vec::<Value>::new());
    assert_eq!(fs::metadata(&filler).unwrap().len(), size, "a foreign file was touched");
    fs::remove_file(filler).unwrap();
    scene.assert_clean(&scene.home.creel.run(["reconcile"]).expect_code(0));
}
