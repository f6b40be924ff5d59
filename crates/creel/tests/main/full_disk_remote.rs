//! A full disk under CREEL_HOME with sandboxes of Daytona on record: what is on the disk goes
//! first, sandboxes go when their release can be recorded, and look-alikes stay.

use std::fs;
use std::path::PathBuf;

use creel_daytona_server::Settings;
use creel_testkit::creel::Output;
use serde_json::{Value, json};

use crate::daytona::Daytona;
use crate::small_disk::{SmallDisk, fill};
use crate::support::Home;

/// Retries as usual, but sooner.
const SETTINGS: &str = "[retry]\ninitial = \"50ms\"\n";
/// How many sandboxes and how many directories are held.
const COUNT: usize = 3;

/// A home on a small disk with a service of its own; the disk goes first.
struct Scene {
    disk: SmallDisk,
    daytona: Daytona,
    home: Home,
}

impl Scene {
    fn set_up() -> Self {
        let daytona = Daytona::start(Settings::hollow());
        let mut home = Home::without_engine();
        home.creel = daytona.point(home.creel.clone());
        let disk = SmallDisk::tmpfs(&home.creel.state(), "48m");
        home.configure(SETTINGS);
        Self { disk, daytona, home }
    }

    fn ballast(&self) -> PathBuf {
        self.home.creel.state().join("ledger.ballast")
    }

    /// Plants a look-alike of every sandbox on record.
    fn plant(&self) {
        let ledger = self.home.ledger_id();
        for record in self.home.open_records() {
            let of = |field: &str| record[field].as_str().unwrap();
            if of("kind") == "sandbox" {
                self.daytona.plant(of("name"), of("resource"), &ledger);
            }
        }
    }

    /// Holds directories and sandboxes, and kills the holder. Returns the directories.
    fn leave_mixed(&self) -> Vec<PathBuf> {
        let count = COUNT.to_string();
        let flags = ["--directory", "--sandbox", "--count", &count, "--no-watchdog"];
        self.home.hold(&flags).running.kill();
        self.plant();
        let entries = fs::read_dir(self.home.creel.state().join("sandboxes")).unwrap();
        let mut directories: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        directories.retain(|path| path.is_dir());
        assert_eq!(directories.len(), COUNT, "{directories:?}");
        assert_eq!(self.daytona.left().len(), COUNT);
        directories
    }

    /// Returns the sequence numbers of one kind of event for all resources of a provider.
    fn sequence_numbers(&self, provider: &str, event: &str) -> Vec<i64> {
        let records = self.home.records().into_iter();
        let records = records.filter(|record| record["provider"] == provider);
        let events = records.flat_map(|one| self.home.events(one["resource"].as_str().unwrap()));
        let events = events.filter(|one| one["event"] == event);
        events.map(|one| one["sequence"].as_i64().unwrap()).collect()
    }

    /// Checks that nothing of creel's is left, here and there, and every look-alike is.
    #[track_caller]
    fn assert_clean(&self, output: &Output) {
        assert_eq!(self.daytona.left(), Vec::<Value>::new(), "{output}");
        self.daytona.assert_decoys_untouched();
        assert_eq!(self.home.on_machine(), Vec::<String>::new(), "{output}");
        assert_eq!(self.home.open_records(), Vec::<Value>::new(), "{output}");
        self.home.creel.run(["ledger", "check"]).expect_code(0);
        assert!(self.ballast().exists(), "the ballast was not made again: {output}");
    }
}

#[test]
fn sandboxes_are_released_after_what_fills_the_disk() {
    for line in ["reconcile", "sweep --apply --owned"] {
        let scene = Scene::set_up();
        let directories = scene.leave_mixed();
        // The service is busy, too: retries are on record like everything else.
        scene.daytona.arm(&json!({"at": "delete", "fault": "status", "status": 503, "count": 2}));
        for directory in &directories[1..] {
            fs::write(directory.join("some"), vec![b'x'; 1 << 20]).unwrap();
        }
        fill(&directories[0].join("big"));
        let output = scene.home.creel.run(line.split_whitespace()).expect_code(0);
        assert!(!output.stderr.contains("audit incomplete"), "{line}: {output}");
        assert_eq!(scene.daytona.fired(), 2, "{line}: {output}");
        let local = scene.sequence_numbers("process", "verified_gone");
        let remote = scene.sequence_numbers("daytona", "release_requested");
        assert_eq!((local.len(), remote.len()), (COUNT, COUNT), "{line}: {output}");
        assert!(local.iter().max() < remote.iter().min(), "{line}: {local:?} {remote:?}\n{output}");
        scene.assert_clean(&output);
    }
}

#[test]
fn without_any_reserve_sandboxes_stay_and_are_reported() {
    for then in ["reconcile", "sweep --apply --owned"] {
        let scene = Scene::set_up();
        let directories = scene.leave_mixed();
        let before = scene.daytona.left();
        // This also empties the write-ahead log of the ledger, which would have space.
        scene.home.ledger_id();
        fs::remove_file(scene.ballast()).unwrap();
        let filler = scene.disk.fill();

        let output = scene.home.creel.run(["reconcile", "--json"]).expect_code(3);
        assert!(output.stderr.contains("error[CR0006]: audit incomplete: "), "{output}");
        assert!(directories.iter().all(|directory| !directory.exists()), "{output}");
        assert_eq!(scene.daytona.left(), before, "{output}");
        let status = output.json();
        assert!(status["audit_incomplete"].as_u64().unwrap() > 0, "{output}");
        let items = status["items"].as_array().unwrap();
        let items = items.iter().filter(|item| item["provider"] == "daytona");
        let reasons: Vec<&str> = items.map(|item| item["reason"].as_str().unwrap()).collect();
        assert_eq!(reasons.len(), COUNT, "{output}");
        for reason in reasons {
            assert!(reason.starts_with("not tried: ") && reason.contains("full"), "{output}");
        }

        fs::remove_file(filler).unwrap();
        let output = scene.home.creel.run(then.split_whitespace()).expect_code(0);
        scene.assert_clean(&output);
    }
}

#[test]
fn a_watchdog_gives_sandboxes_back_on_a_full_disk() {
    let scene = Scene::set_up();
    let hold = scene.home.hold(&["--directory", "--sandbox", "--count", "2"]);
    scene.plant();
    let filler = scene.disk.fill();
    let output = hold.running.kill();
    scene.home.await_quiet();
    assert_eq!(scene.daytona.left(), Vec::<Value>::new(), "{output}");
    fs::remove_file(filler).unwrap();
    let output = scene.home.creel.run(["reconcile"]).expect_code(0);
    scene.assert_clean(&output);
}

#[test]
fn no_sandbox_is_made_that_could_not_be_recorded() {
    let scene = Scene::set_up();
    // The ledger exists, and has no reserve any more.
    scene.daytona.plant("creel-0198", "res_0198", &scene.home.ledger_id());
    let _ = fs::remove_file(scene.ballast());
    let filler = scene.disk.fill();
    let hold = ["dev", "hold", "--sandbox", "--for", "0s", "--no-watchdog"];
    let output = scene.home.creel.run(hold);
    assert_ne!(output.code(), Some(0), "{output}");
    assert!(output.stderr.contains("full"), "{output}");
    assert_eq!(scene.daytona.requests(Some("POST /sandbox")), 0, "{output}");
    fs::remove_file(filler).unwrap();
    let output = scene.home.creel.run(["reconcile"]).expect_code(0);
    scene.assert_clean(&output);
}
