//! Where rounds are played: an engine of their own, and a home on a small file system.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use creel_testkit::creel::Creel;
use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::docker::Docker;
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::wire::Wire;
use creel_testkit::world::{Inventory, World};

use crate::cli::cloud::Cloud;
use crate::support::Home;

/// Unanswered creates are searched for no longer than a test can wait.
const SETTINGS: &str = "[retry]\ninitial = \"50ms\"\n[ledger]\nintent_window = \"3s\"\n";
/// The size of the file system that holds the state: room for a sandbox, not for its greed.
const STATE_SIZE: &str = "size=48m,mode=700";
/// How long one command may take on a loaded machine.
const COMMAND_DEADLINE: Duration = Duration::from_secs(120);
/// Shifts the wall clock of one program and leaves the other clocks alone.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// The label of what the sweeps of a round select.
pub(super) const SWEPT: (&str, &str) = ("dev.example.hostile", "swept");
/// The image that others point moved tags at.
pub(super) const FOREIGN_IMAGE: &str = "others-image:latest";

/// An engine that only rounds use, and what it had before.
pub(crate) struct Arena {
    baseline: Inventory,
    /// Look-alikes of what sweeps select; part of the baseline.
    decoys: Decoys,
    // The last field: the engine must outlive what is removed from it.
    engine: PrivateEngine,
}

impl Arena {
    pub(crate) fn set_up() -> Self {
        assert!(Path::new(FAKETIME).exists(), "install the package libfaketime");
        let engine = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
        let docker = engine.engine().docker();
        let source = docker.cli(&["create", "--name", "others-source", "creel-test", "true"]);
        assert!(source.unwrap().status.success(), "the foreign image has no source");
        docker.commit("others-source", "others-image", "latest").unwrap();
        docker.remove_container("others-source").unwrap();
        let selected = Lookalike {
            name: "selected".to_owned(),
            label_key: SWEPT.0.to_owned(),
            label_value: SWEPT.1.to_owned(),
        };
        let decoys = Decoys::plant(&engine.engine(), &selected).unwrap();
        let baseline = World::snapshot(&engine.engine()).unwrap();
        Self { baseline, decoys, engine }
    }

    pub(super) fn engine(&self) -> Engine {
        self.engine.engine()
    }

    pub(super) fn docker(&self) -> Docker {
        self.engine().docker()
    }

    /// Returns what the engine has now and did not have before the first round.
    pub(super) fn added(&self) -> Inventory {
        World::snapshot(&self.engine()).unwrap().minus(&self.baseline)
    }

    /// Returns a line for each look-alike that was touched.
    pub(super) fn touched(&self) -> Vec<String> {
        self.decoys.touched()
    }
}

/// A home whose state has a file system of its own, behind a wire of its own, with a Daytona of
/// its own where the work needs one.
pub(super) struct Place {
    pub(super) home: Home,
    pub(super) wire: Wire,
    pub(super) cloud: Option<Cloud>,
    state: PathBuf,
}

impl Place {
    pub(super) fn make(arena: &Arena, seed: u64, has_cloud: bool) -> Self {
        let wire = Wire::start(&arena.engine(), seed).unwrap();
        let mut home = Home::on(&wire.engine());
        let state = home.creel.state();
        mount(&state);
        home.configure(SETTINGS);
        home.creel = home.creel.clone().deadline(COMMAND_DEADLINE);
        // Its sandboxes are directories and process trees, on a ledger and a disk of its own.
        let cloud = has_cloud.then(|| Cloud::with(&["--fast"]));
        if let Some(cloud) = &cloud {
            home.creel = cloud.given_to(home.creel.clone());
        }
        Self { home, wire, cloud, state }
    }

    /// Returns the binary as it runs while the wall clock is off by this many seconds.
    pub(super) fn creel_at(&self, offset: i64) -> Creel {
        if offset == 0 {
            return self.home.creel.clone();
        }
        self.home
            .creel
            .clone()
            .env("LD_PRELOAD", FAKETIME)
            .env("FAKETIME", format!("{offset:+}s"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
    }

    /// Fills the file system of the state to its last byte.
    pub(super) fn fill_disk(&self) {
        let mut file = File::create(self.filler()).unwrap();
        let block = vec![0_u8; 64 * 1024];
        for size in [block.len(), 512, 1] {
            while file.write_all(&block[..size]).is_ok() {}
        }
    }

    /// Gives the space back that [`Place::fill_disk`] took.
    pub(super) fn free_disk(&self) {
        // There is nothing to remove where the disk was never filled.
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.state.join("filler")
    }

    pub(super) fn state(&self) -> &Path {
        &self.state
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.home.processes() {
            crate::support::kill(pid);
        }
        // Detached lazily: a killed process may not have let go of it yet.
        let _ = Command::new("umount").arg("--lazy").arg(&self.state).status();
    }
}

fn mount(state: &Path) {
    let arguments = ["-t", "tmpfs", "-o", STATE_SIZE, "creel-hostile"];
    let status = Command::new("mount").args(arguments).arg(state).status().unwrap();
    assert!(status.success(), "a small file system can be mounted (needs root)");
}
