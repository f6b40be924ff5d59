//! The crash matrix: the real binary is killed at every crashpoint, for every kind.
//!
//! Each cell acquires one resource, dies at one crashpoint, and is followed by a restart.
//! Afterwards nothing of it exists at its provider, its records are closed, the decoys
//! are unchanged, and a second restart changes nothing.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use creel_daytona_server::Settings;
use creel_model::crashpoint::Crashpoint;
use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::docker::{ContainerSpec, Docker, Labels};
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::image;
use creel_testkit::inventory::Inventory;
use creel_testkit::wait::eventually;
use serde_json::Value;

use crate::daytona::Daytona;
use crate::support::{Home, LEDGER_LABEL, PATIENCE, assert_killed, text_of};

/// Settings under which an unanswered create counts as never made at once.
const NO_WINDOW: &str = "[ledger]\nintent_window = \"0s\"\n";

/// Settings under which the search for an unanswered create is short enough for a test.
const SHORT_WINDOW: &str = "[ledger]\nintent_window = \"2s\"\n";

/// The resource that a cell acquires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldKind {
    Container,
    Network,
    Volume,
    Process,
    Directory,
    Sandbox,
}

impl HeldKind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Container,
        Self::Network,
        Self::Volume,
        Self::Process,
        Self::Directory,
        Self::Sandbox,
    ];

    /// Returns whether another process creates it, which may happen after ours has died.
    fn lands_late(self) -> bool {
        !matches!(self, Self::Process | Self::Directory)
    }

    /// Returns the flags that request it.
    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Container => &["--container", image::REFERENCE],
            Self::Network => &["--network"],
            Self::Volume => &["--volume"],
            Self::Process => &["--process"],
            Self::Directory => &["--directory"],
            Self::Sandbox => &["--sandbox"],
        }
    }
}

/// How a supervisor ends at a random instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// By SIGKILL; its watchdog survives.
    Killed,
    /// By SIGKILL, and there is no watchdog.
    KilledAlone,
    /// By SIGTERM.
    Asked,
}

/// Returns whether a crash there leaves an intent without a resource.
fn leaves_a_bare_intent(point: Crashpoint) -> bool {
    point == Crashpoint::AfterIntent
}

/// Returns whether a crash there leaves the object at its provider.
fn leaves_an_object(point: Crashpoint) -> bool {
    matches!(point, Crashpoint::CreateSent | Crashpoint::CreatedNotRecorded)
}

/// The engine, the sandbox server, the home and the decoys that all cells share.
pub(crate) struct Matrix {
    home: Home,
    decoys: Decoys,
    baseline: Inventory,
    daytona: Daytona,
    // The last field, because the engine must outlive the objects on it.
    engine: PrivateEngine,
}

impl Matrix {
    /// Starts a private engine, so that its whole inventory can be compared.
    pub(crate) fn set_up() -> Self {
        let engine = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
        let mut home = Home::on(&engine.engine());
        let daytona = Daytona::start(Settings::hollow());
        home.creel = daytona.point(home.creel.clone());
        daytona.plant("creel-0198", "res_0198", &home.ledger_id());
        let original = Lookalike {
            name: "creel-0198".to_owned(),
            label_key: LEDGER_LABEL.to_owned(),
            label_value: home.ledger_id(),
        };
        let decoys = Decoys::plant(&engine.engine(), &original).unwrap();
        let baseline = Inventory::snapshot(&engine.engine()).unwrap();
        Self { home, decoys, baseline, daytona, engine }
    }

    /// Returns the engine that all cells share.
    pub(crate) fn engine(&self) -> Engine {
        self.engine.engine()
    }

    /// Acquires one resource and dies at the crashpoint.
    fn crash(&self, held_kind: HeldKind, point: Crashpoint, more: &[&str]) {
        let (output, reached) = self.home.hold_until(point, &[more, held_kind.flags()].concat());
        assert_killed(&output);
        assert!(reached, "the fault did not fire\n{output}");
    }

    /// Runs one cell.
    pub(crate) fn run(&self, held_kind: HeldKind, point: Crashpoint) {
        let before = self.home.records().len();
        self.crash(held_kind, point, &["--no-watchdog"]);
        let records = self.home.records();
        let expected = usize::from(point != Crashpoint::BeforeIntent);
        assert_eq!(records.len() - before, expected, "{records:#?}");
        if leaves_an_object(point) {
            assert!(!self.left().is_empty(), "there is nothing to release");
        }
        let near = records.last().map(|record| NearbyDecoys::plant(self, held_kind, record));

        // A create that may still land is waited for, which the exit code reports.
        let code = if leaves_a_bare_intent(point) && held_kind.lands_late() { 3 } else { 0 };
        self.home.creel.run(["reconcile"]).expect_code(code);
        self.assert_released(point, near.as_ref());
        let after_one = self.home.ledger_state();
        self.home.creel.run(["reconcile"]).expect_code(code);
        assert_eq!(self.home.ledger_state(), after_one, "the second recovery changed something");

        self.home.configure(NO_WINDOW);
        self.home.creel.run(["reconcile"]).expect_code(0);
        self.home.configure("");
        let open = self.home.open_records();
        assert!(open.is_empty(), "still open without a window: {open:#?}");
        if leaves_a_bare_intent(point) {
            assert_eq!(self.home.last_events().last().unwrap()["event"], "never_created");
        }
        if let Some(near) = near {
            near.assert_untouched(self);
        }
        self.assert_decoys_untouched();
    }

    /// Acquires one resource of each kind, ends the supervisor at an instant, and recovers. Returns
    /// the states of the records it left.
    pub(crate) fn end_after(&self, instant: Duration, end: End) -> Vec<String> {
        self.home.configure(SHORT_WINDOW);
        let kinds = HeldKind::ALL.into_iter().flat_map(HeldKind::flags).copied();
        let alone: &[&str] = if end == End::KilledAlone { &["--no-watchdog"] } else { &[] };
        let hold = [&["dev", "hold", "--for", "0s"], alone].concat();
        let running = self.home.creel.spawn(hold.into_iter().chain(kinds));
        thread::sleep(instant);
        if end == End::Asked {
            running.signal("TERM");
            running.wait();
        } else {
            running.kill();
        }
        let states = self.home.open_records();
        // A supervisor that acquired a resource had already started its watchdog, which is enough.
        self.home.await_quiet();
        let converged = eventually(PATIENCE, || {
            if end == End::KilledAlone {
                // It fails correctly while a late container uses what is to be released.
                self.home.creel.run(["reconcile"]);
            }
            self.home.open_records().is_empty()
        });
        assert!(converged, "after {instant:?}: {:#?}", self.home.open_records());
        self.home.creel.run(["reconcile"]).expect_code(0);
        assert_eq!(self.left(), Vec::<String>::new(), "after {instant:?}");
        states.iter().map(|record| record["state"].as_str().unwrap().to_owned()).collect()
    }

    fn assert_released(&self, point: Crashpoint, near: Option<&NearbyDecoys>) {
        assert_eq!(self.left_besides(near), Vec::<String>::new());
        for record in self.home.open_records() {
            let bare = record["state"] == "intended" && record["id"].is_null();
            assert!(bare && leaves_a_bare_intent(point), "still open: {record:#}");
        }
    }

    /// Returns everything that exists now and did not exist before.
    fn left(&self) -> Vec<String> {
        self.left_besides(None)
    }

    /// Returns the same without the decoys planted near the acquired resource.
    fn left_besides(&self, near: Option<&NearbyDecoys>) -> Vec<String> {
        let inventory = Inventory::snapshot(&self.engine()).unwrap().minus(&self.baseline);
        let copies = near.map(NearbyDecoys::copied_ids).unwrap_or_default();
        let of_engine = inventory.objects().filter(|object| {
            !NearbyDecoys::is(&object.name) && !copies.contains(&object.id.as_str())
        });
        let of_machine = self.home.on_machine().into_iter().filter(|line| !NearbyDecoys::is(line));
        let of_engine = of_engine.map(|object| format!("{object:?}"));
        let sandboxes = self.daytona.left().into_iter().map(|row| format!("sandbox {row}"));
        of_engine.chain(of_machine).chain(sandboxes).collect()
    }

    fn assert_decoys_untouched(&self) {
        self.decoys.assert_untouched();
        self.daytona.assert_decoys_untouched();
    }

    /// Asserts that the whole matrix left everything as it was before.
    pub(crate) fn assert_unchanged(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
        self.assert_decoys_untouched();
    }
}

/// Decoys of the very resource that a cell acquired, created when its name is known.
enum NearbyDecoys {
    Object {
        name: String,
        /// Objects with the same labels as the original under other names.
        copies: Decoys,
    },
    Processes(Vec<Child>),
    Directories(Vec<PathBuf>),
    /// Those of a sandbox stay, and are checked with the other decoys.
    Sandboxes,
}

impl NearbyDecoys {
    /// The suffix of every such name: one letter more than the original's.
    const SUFFIX: char = 'x';

    fn is(text: &str) -> bool {
        text.ends_with(Self::SUFFIX)
    }

    /// Returns the ids of the objects with copied labels.
    fn copied_ids(&self) -> Vec<&str> {
        match self {
            Self::Object { copies, .. } => copies.ids(),
            Self::Processes(_) | Self::Directories(_) | Self::Sandboxes => Vec::new(),
        }
    }

    fn plant(matrix: &Matrix, held_kind: HeldKind, record: &Value) -> Self {
        let (name, resource) =
            (record["name"].as_str().unwrap(), record["resource"].as_str().unwrap());
        let near = format!("{name}{}", Self::SUFFIX);
        let docker = matrix.engine().docker();
        let labels = Labels::from([
            ("dev.creel.resource".to_owned(), format!("{resource}{}", Self::SUFFIX)),
            (LEDGER_LABEL.to_owned(), matrix.home.ledger_id()),
        ]);
        let copied = matrix.home.labels_of(record);
        let copies = || Decoys::copies(&matrix.engine(), &format!("{name}-copy"), &copied).unwrap();
        match held_kind {
            HeldKind::Container => {
                docker.create(&ContainerSpec::sleeping(&near).labels(&labels)).unwrap();
            }
            HeldKind::Network => drop(docker.create_network(&near, &labels).unwrap()),
            HeldKind::Volume => drop(docker.create_volume(&near, &labels).unwrap()),
            HeldKind::Process => return Self::Processes(near_processes(resource)),
            HeldKind::Directory => return Self::Directories(near_directories(matrix, name)),
            HeldKind::Sandbox => {
                matrix.daytona.plant(name, resource, &matrix.home.ledger_id());
                return Self::Sandboxes;
            }
        }
        Self::Object { name: near, copies: copies() }
    }

    /// Asserts that the decoys still exist, and removes them.
    fn assert_untouched(self, matrix: &Matrix) {
        match self {
            Self::Object { name, copies } => {
                copies.assert_untouched();
                drop(copies);
                let docker = matrix.engine().docker();
                let inventory = Inventory::snapshot(&matrix.engine()).unwrap();
                let found = inventory.objects().any(|object| object.name == name);
                assert!(found, "the decoy {name} is gone");
                remove(&docker, &name);
            }
            Self::Processes(processes) => {
                for mut process in processes {
                    assert!(process.try_wait().unwrap().is_none(), "a decoy was ended");
                    process.kill().unwrap();
                    process.wait().unwrap();
                }
            }
            Self::Directories(paths) => {
                for path in paths {
                    assert_eq!(text_of(&path.join("kept")), "kept", "{}", path.display());
                    fs::remove_dir_all(path).unwrap();
                }
            }
            Self::Sandboxes => {}
        }
    }
}

fn remove(docker: &Docker, name: &str) {
    docker.remove_container(name).unwrap();
    docker.remove_network(name).unwrap();
    docker.remove_volume(name).unwrap();
}

/// Starts processes whose marker closely resembles that of the resource.
fn near_processes(resource: &str) -> Vec<Child> {
    let variants = [
        ("CREEL_RESOURCE", format!("{resource}{}", NearbyDecoys::SUFFIX)),
        ("CREEL_RESOURCE", resource.to_uppercase()),
        ("XCREEL_RESOURCE", resource.to_owned()),
        ("CREEL_RESOURCES", resource.to_owned()),
    ];
    let start = |(key, value): &(&str, String)| {
        // The id on the command line proves nothing either.
        let mut command = Command::new("sleep");
        command.arg0(resource).arg("100000").env(key, value).stdin(Stdio::null());
        command.spawn().unwrap()
    };
    variants.iter().map(start).collect()
}

/// Creates directories whose names resemble the original's, or equal it elsewhere.
fn near_directories(matrix: &Matrix, name: &str) -> Vec<PathBuf> {
    let root = matrix.home.creel.state().join("sandboxes");
    let paths = vec![root.join(format!("{name}{}", NearbyDecoys::SUFFIX)), matrix.home.path(name)];
    for path in &paths {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("kept"), "kept").unwrap();
    }
    paths
}

#[test]
fn a_crash_at_every_crashpoint_leaves_nothing_of_any_kind() {
    let matrix = Matrix::set_up();
    for held_kind in HeldKind::ALL {
        for point in Crashpoint::ALL {
            matrix.run(held_kind, point);
        }
    }
    matrix.assert_unchanged();
}

#[test]
fn the_watchdog_alone_reclaims_after_a_crash() {
    let places = [
        (HeldKind::Container, Crashpoint::CreateSent),
        (HeldKind::Network, Crashpoint::CreatedNotRecorded),
        (HeldKind::Volume, Crashpoint::ReleaseSent),
        (HeldKind::Process, Crashpoint::CreateSent),
        (HeldKind::Directory, Crashpoint::ReleasedNotVerified),
        (HeldKind::Sandbox, Crashpoint::CreateSent),
        (HeldKind::Sandbox, Crashpoint::ReleaseSent),
    ];
    let matrix = Matrix::set_up();
    for (held_kind, point) in places {
        matrix.crash(held_kind, point, &[]);
        matrix.home.await_quiet();
        assert!(eventually(PATIENCE, || matrix.left().is_empty()), "{:#?}", matrix.left());
        let open = matrix.home.open_records();
        assert!(open.is_empty(), "the watchdog left open: {open:#?}");
    }
    matrix.assert_unchanged();
}
