//! The crash matrix: the real binary is killed at every named place, for every kind.
//!
//! Each cell takes one thing, dies at one place, and is followed by a restart.
//! What must be true then: nothing of it is left in the world, its records are
//! closed, look-alikes stand as they stood, and a second restart changes nothing.

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
use creel_testkit::wait::eventually;
use creel_testkit::world::{Inventory, World};
use serde_json::Value;

use crate::daytona::Daytona;
use crate::support::{Home, LEDGER_LABEL, PATIENCE, assert_killed, text_of};

/// The settings under which an unanswered create counts as never made at once.
const NO_WINDOW: &str = "[ledger]\nintent_window = \"0s\"\n";

/// The settings under which an unanswered create is searched for no longer than a test can wait.
const SHORT_WINDOW: &str = "[ledger]\nintent_window = \"2s\"\n";

/// What a cell takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Container,
    Network,
    Volume,
    Process,
    Directory,
    Sandbox,
}

impl Taken {
    pub(crate) const ALL: [Self; 6] = [
        Self::Container,
        Self::Network,
        Self::Volume,
        Self::Process,
        Self::Directory,
        Self::Sandbox,
    ];

    /// Returns whether another process makes it, which may do so after ours has died.
    fn lands_late(self) -> bool {
        !matches!(self, Self::Process | Self::Directory)
    }

    /// Returns the flags that ask for it.
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
    /// By SIGKILL; its watchdog lives.
    Killed,
    /// By SIGKILL, and there is no watchdog.
    KilledAlone,
    /// By SIGTERM.
    Asked,
}

/// Says whether a crash there leaves an intent of which nothing came.
fn leaves_a_bare_intent(point: Crashpoint) -> bool {
    point == Crashpoint::AfterIntent
}

/// Says whether a crash there leaves the object in the world.
fn leaves_an_object(point: Crashpoint) -> bool {
    matches!(point, Crashpoint::CreateSent | Crashpoint::CreatedNotRecorded)
}

/// The engine, the sandboxes' server, the home and the decoys that all cells share.
pub(crate) struct Matrix {
    home: Home,
    decoys: Decoys,
    baseline: Inventory,
    daytona: Daytona,
    // The last field: the engine must outlive what is removed from it.
    engine: PrivateEngine,
}

impl Matrix {
    /// Starts an engine that nobody else uses, so that its inventory can be compared as a whole.
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
        let baseline = World::snapshot(&engine.engine()).unwrap();
        Self { home, decoys, baseline, daytona, engine }
    }

    /// Returns the engine that all cells share.
    pub(crate) fn engine(&self) -> Engine {
        self.engine.engine()
    }

    /// Takes one thing and dies at the place.
    fn crash(&self, taken: Taken, point: Crashpoint, more: &[&str]) {
        let (output, reached) = self.home.hold_until(point, &[more, taken.flags()].concat());
        assert_killed(&output);
        assert!(reached, "the fault did not fire\n{output}");
    }

    /// Runs one cell.
    pub(crate) fn run(&self, taken: Taken, point: Crashpoint) {
        let before = self.home.records().len();
        self.crash(taken, point, &["--no-watchdog"]);
        let records = self.home.records();
        let expected = usize::from(point != Crashpoint::BeforeIntent);
        assert_eq!(records.len() - before, expected, "{records:#?}");
        if leaves_an_object(point) {
            assert!(!self.left().is_empty(), "there is nothing to give back");
        }
        let near = records.last().map(|record| Near::plant(self, taken, record));

        // A create that may still land is waited for, and the code says so.
        let code = if leaves_a_bare_intent(point) && taken.lands_late() { 3 } else { 0 };
        self.home.creel.run(["reconcile"]).expect_code(code);
        self.assert_given_back(point, near.as_ref());
        let after_one = self.home.story();
        self.home.creel.run(["reconcile"]).expect_code(code);
        assert_eq!(self.home.story(), after_one, "the second recovery changed something");

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

    /// Takes one of each kind, ends the supervisor at an instant, and recovers; returns the
    /// states of the records it left.
    pub(crate) fn end_after(&self, instant: Duration, end: End) -> Vec<String> {
        self.home.configure(SHORT_WINDOW);
        let kinds = Taken::ALL.into_iter().flat_map(Taken::flags).copied();
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
        // Whoever took something had a watchdog before, and that one needs no help.
        self.home.await_quiet();
        let settled = eventually(PATIENCE, || {
            if end == End::KilledAlone {
                // It fails truthfully while a late container uses what is to go.
                self.home.creel.run(["reconcile"]);
            }
            self.home.open_records().is_empty()
        });
        assert!(settled, "after {instant:?}: {:#?}", self.home.open_records());
        self.home.creel.run(["reconcile"]).expect_code(0);
        assert_eq!(self.left(), Vec::<String>::new(), "after {instant:?}");
        states.iter().map(|record| record["state"].as_str().unwrap().to_owned()).collect()
    }

    fn assert_given_back(&self, point: Crashpoint, near: Option<&Near>) {
        assert_eq!(self.left_besides(near), Vec::<String>::new());
        for record in self.home.open_records() {
            let bare = record["state"] == "intended" && record["id"].is_null();
            assert!(bare && leaves_a_bare_intent(point), "still open: {record:#}");
        }
    }

    /// Returns everything that is in the world and was not before.
    fn left(&self) -> Vec<String> {
        self.left_besides(None)
    }

    /// Returns the same without what was planted near the thing that was taken.
    fn left_besides(&self, near: Option<&Near>) -> Vec<String> {
        let world = World::snapshot(&self.engine()).unwrap().minus(&self.baseline);
        let copies = near.map(Near::copied_ids).unwrap_or_default();
        let of_engine = world
            .objects()
            .filter(|object| !Near::is(&object.name) && !copies.contains(&object.id.as_str()));
        let of_machine = self.home.on_machine().into_iter().filter(|line| !Near::is(line));
        let of_engine = of_engine.map(|object| format!("{object:?}"));
        let sandboxes = self.daytona.left().into_iter().map(|row| format!("sandbox {row}"));
        of_engine.chain(of_machine).chain(sandboxes).collect()
    }

    fn assert_decoys_untouched(&self) {
        self.decoys.assert_untouched();
        self.daytona.assert_decoys_untouched();
    }

    /// Checks that the whole matrix left the world as it was.
    pub(crate) fn assert_as_before(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
        self.assert_decoys_untouched();
    }
}

/// Look-alikes of the very thing that a cell took, made when its name is known.
enum Near {
    Object {
        name: String,
        /// What carries the very labels of the original under other names.
        copies: Decoys,
    },
    Processes(Vec<Child>),
    Directories(Vec<PathBuf>),
    /// Those of a sandbox stay, and are checked with the other decoys.
    Sandboxes,
}

impl Near {
    /// What every such name ends in: one letter more than the original's.
    const SUFFIX: char = 'x';

    fn is(text: &str) -> bool {
        text.ends_with(Self::SUFFIX)
    }

    /// Returns the ids of what carries copied labels.
    fn copied_ids(&self) -> Vec<&str> {
        match self {
            Self::Object { copies, .. } => copies.ids(),
            Self::Processes(_) | Self::Directories(_) | Self::Sandboxes => Vec::new(),
        }
    }

    fn plant(matrix: &Matrix, taken: Taken, record: &Value) -> Self {
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
        match taken {
            Taken::Container => {
                docker.create(&ContainerSpec::sleeping(&near).labels(&labels)).unwrap();
            }
            Taken::Network => drop(docker.create_network(&near, &labels).unwrap()),
            Taken::Volume => drop(docker.create_volume(&near, &labels).unwrap()),
            Taken::Process => return Self::Processes(near_processes(resource)),
            Taken::Directory => return Self::Directories(near_directories(matrix, name)),
            Taken::Sandbox => {
                matrix.daytona.plant(name, resource, &matrix.home.ledger_id());
                return Self::Sandboxes;
            }
        }
        Self::Object { name: near, copies: copies() }
    }

    /// Checks that the look-alikes are still there, and takes them away.
    fn assert_untouched(self, matrix: &Matrix) {
        match self {
            Self::Object { name, copies } => {
                copies.assert_untouched();
                drop(copies);
                let docker = matrix.engine().docker();
                let world = World::snapshot(&matrix.engine()).unwrap();
                let found = world.objects().any(|object| object.name == name);
                assert!(found, "the look-alike {name} is gone");
                remove(&docker, &name);
            }
            Self::Processes(processes) => {
                for mut process in processes {
                    assert!(process.try_wait().unwrap().is_none(), "a look-alike was ended");
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

/// Starts processes that carry almost the marker of the resource.
fn near_processes(resource: &str) -> Vec<Child> {
    let variants = [
        ("CREEL_RESOURCE", format!("{resource}{}", Near::SUFFIX)),
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

/// Makes directories that have almost the name of the original, or its name elsewhere.
fn near_directories(matrix: &Matrix, name: &str) -> Vec<PathBuf> {
    let root = matrix.home.creel.state().join("sandboxes");
    let paths = vec![root.join(format!("{name}{}", Near::SUFFIX)), matrix.home.path(name)];
    for path in &paths {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("kept"), "kept").unwrap();
    }
    paths
}

#[test]
fn a_crash_at_every_place_leaves_nothing_of_any_kind() {
    let matrix = Matrix::set_up();
    for taken in Taken::ALL {
        for point in Crashpoint::ALL {
            matrix.run(taken, point);
        }
    }
    matrix.assert_as_before();
}

#[test]
fn the_watchdog_alone_reclaims_after_a_crash() {
    let places = [
        (Taken::Container, Crashpoint::CreateSent),
        (Taken::Network, Crashpoint::CreatedNotRecorded),
        (Taken::Volume, Crashpoint::ReleaseSent),
        (Taken::Process, Crashpoint::CreateSent),
        (Taken::Directory, Crashpoint::ReleasedNotVerified),
        (Taken::Sandbox, Crashpoint::CreateSent),
        (Taken::Sandbox, Crashpoint::ReleaseSent),
    ];
    let matrix = Matrix::set_up();
    for (taken, point) in places {
        matrix.crash(taken, point, &[]);
        matrix.home.await_quiet();
        assert!(eventually(PATIENCE, || matrix.left().is_empty()), "{:#?}", matrix.left());
        let open = matrix.home.open_records();
        assert!(open.is_empty(), "the watchdog left open: {open:#?}");
    }
    matrix.assert_as_before();
}
