//! Shared fixture of the command-line tests: a state directory, an engine, a unique name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::decoys::Lookalike;
use creel_testkit::docker::{ContainerSpec, Docker, Labels};
use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::inventory::{Inventory, Kind, Object};
use creel_testkit::wait::eventually_some;
use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_creel");

/// The time limit for `dev hold` to acquire everything.
const HOLD_DEADLINE: Duration = Duration::from_secs(30);

/// The fixture of one test. The objects it created on the engine are removed on drop.
#[derive(Debug)]
pub(super) struct CliFixture {
    home: TempDir,
    engine: Engine,
    /// The prefix of every name and the value of every label of this test.
    pub(super) name: String,
}

impl CliFixture {
    /// Uses the engine that the suite shares.
    pub(super) fn new() -> Self {
        Self::on(Engine::from_env())
    }

    /// Uses another engine.
    pub(super) fn on(engine: Engine) -> Self {
        let home = tempfile::tempdir().unwrap();
        Self { home, engine, name: unique_name() }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn docker(&self) -> Docker {
        self.engine.docker()
    }

    /// Returns a path below the test's directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns the state directory.
    pub(super) fn state(&self) -> PathBuf {
        self.creel().state()
    }

    /// Returns the binary, with this test's engine and state.
    pub(super) fn creel(&self) -> Creel {
        Creel::new(BINARY, self.home.path(), self.engine.host())
    }

    /// Returns the binary without a configured engine.
    pub(super) fn creel_without_docker(&self) -> Creel {
        Creel::without_docker(BINARY, self.home.path())
    }

    /// Runs a command line, split at blanks.
    #[track_caller]
    pub(super) fn run(&self, line: &str) -> Output {
        run(&self.creel(), line)
    }

    /// Writes the settings file.
    pub(super) fn configure(&self, text: &str) {
        fs::create_dir_all(self.state()).unwrap();
        fs::write(self.state().join("config.toml"), text).unwrap();
    }

    /// Returns the key of the test's label.
    pub(super) fn key(&self) -> String {
        format!("test.{}", self.name)
    }

    /// Returns the test's label in the format of `--label`.
    pub(super) fn label(&self) -> String {
        format!("{}={}", self.key(), self.name)
    }

    /// Returns the test's label in the format of an engine.
    pub(super) fn labels(&self) -> Labels {
        Labels::from([(self.key(), self.name.clone())])
    }

    /// Returns the description of the objects that decoys resemble.
    pub(super) fn lookalike(&self) -> Lookalike {
        let (label_key, label_value) = (self.key(), self.name.clone());
        Lookalike { name: self.name.clone(), label_key, label_value }
    }

    /// Returns a name with the test's prefix.
    pub(super) fn named(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.name)
    }

    /// Creates a running container with the test's label.
    pub(super) fn running(&self, suffix: &str) -> String {
        let spec = ContainerSpec::sleeping(&self.named(suffix)).labels(&self.labels());
        self.docker().run(&spec).unwrap()
    }

    /// Creates an exited container with the test's label.
    pub(super) fn exited(&self, suffix: &str) -> String {
        let spec = ContainerSpec::exiting(&self.named(suffix)).labels(&self.labels());
        self.docker().run_to_exit(&spec).unwrap()
    }

    /// Creates a container with the test's label, and never starts it.
    pub(super) fn created(&self, suffix: &str) -> String {
        let spec = ContainerSpec::exiting(&self.named(suffix)).labels(&self.labels());
        self.docker().create(&spec).unwrap()
    }

    /// Creates a network with the test's label.
    pub(super) fn network(&self, suffix: &str) -> String {
        self.docker().create_network(&self.named(suffix), &self.labels()).unwrap()
    }

    /// Creates a volume with the test's label.
    pub(super) fn volume(&self, suffix: &str) -> String {
        self.docker().create_volume(&self.named(suffix), &self.labels()).unwrap()
    }

    /// Creates an image with the test's label.
    pub(super) fn image(&self, suffix: &str) -> String {
        let source = self.created("-source");
        let id = self.docker().commit(&source, &self.named(suffix), "latest").unwrap();
        self.docker().remove_container(&source).unwrap();
        id
    }

    /// Returns the names of the objects on the engine with this test's name, each with a letter for
    /// the kind, sorted.
    pub(super) fn there(&self) -> Vec<String> {
        let inventory = Inventory::snapshot(&self.engine).unwrap();
        let mine = inventory.filter(|object| object.name.starts_with(&self.name));
        let mut names: Vec<String> = mine.objects().map(|object| self.short(object)).collect();
        names.sort();
        names
    }

    fn short(&self, object: &Object) -> String {
        let letter = match object.kind {
            Kind::Container => 'c',
            Kind::Network => 'n',
            Kind::Volume => 'v',
            Kind::Image => 'i',
        };
        format!("{letter}{}", object.name.trim_start_matches(&self.name))
    }

    /// Starts `creel dev hold` and waits until it holds everything.
    pub(super) fn hold(&self, flags: &str) -> Hold {
        Hold::start(&self.creel(), flags)
    }
}

impl Drop for CliFixture {
    fn drop(&mut self) {
        let Ok(inventory) = Inventory::snapshot(&self.engine) else { return };
        let (key, docker) = (self.key(), self.docker());
        let mine = inventory.filter(|object| {
            object.name.starts_with(&self.name) || object.labels.get(&key) == Some(&self.name)
        });
        // Containers first, because they use the others. The engine is discarded after the suite.
        for object in mine.objects() {
            let _ = match object.kind {
                Kind::Container => docker.remove_container(&object.id),
                Kind::Network => docker.remove_network(&object.id),
                Kind::Volume => docker.remove_volume(&object.id),
                Kind::Image => docker.remove_image(&object.id),
            };
        }
    }
}

/// Runs a command line, split at blanks.
#[track_caller]
pub(super) fn run(creel: &Creel, line: &str) -> Output {
    creel.run(line.split_whitespace())
}

/// A running `creel dev hold`. It releases everything on drop.
#[derive(Debug)]
pub(super) struct Hold {
    running: Option<Running>,
    /// Its output when it held everything.
    pub(super) report: Value,
}

impl Hold {
    pub(super) fn start(creel: &Creel, flags: &str) -> Self {
        let image = flags.replace("IMAGE", image::REFERENCE);
        let args = ["dev", "hold"].into_iter().chain(image.split_whitespace());
        let mut running = creel.spawn(args);
        let report = eventually_some(HOLD_DEADLINE, || {
            let report = serde_json::from_str(&running.stdout()).ok();
            report.or_else(|| running.has_ended().then_some(Value::Null))
        });
        let report = report.unwrap_or_default();
        assert!(report.is_object(), "dev hold: {} {}", running.stdout(), running.stderr());
        Self { running: Some(running), report }
    }

    /// Returns the provider's id of the only resource of a kind.
    pub(super) fn id(&self, kind: &str) -> String {
        self.field(kind, "id")
    }

    /// Returns the resource id of the only resource of a kind.
    pub(super) fn resource(&self, kind: &str) -> String {
        self.field(kind, "resource")
    }

    /// Returns the name of the only resource of a kind.
    pub(super) fn name(&self, kind: &str) -> String {
        self.field(kind, "name")
    }

    fn field(&self, kind: &str, field: &str) -> String {
        let held = self.report["held"].as_array().unwrap();
        let item = held.iter().find(|item| item["kind"] == kind).unwrap();
        item[field].as_str().unwrap().to_owned()
    }

    /// Ends it as Ctrl-C does, and returns its output.
    pub(super) fn end(mut self) -> Output {
        let running = self.running.take().unwrap();
        running.signal("INT");
        running.wait()
    }

    /// Kills only this process with SIGKILL.
    pub(super) fn kill(mut self) {
        self.running.take().unwrap().kill();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal("INT");
            running.wait();
        }
    }
}

/// Returns the items of a report with this result, as `kind name`, in sequence.
pub(super) fn results(output: &Output, result: &str) -> Vec<String> {
    let json = output.json();
    let items = json["items"].as_array().unwrap_or_else(|| panic!("no items\n{output}"));
    let wanted = items.iter().filter(|item| item["result"] == result);
    wanted.map(|item| format!("{} {}", text(item, "kind"), text(item, "name"))).collect()
}

/// Returns the reason of the only item with that name.
pub(super) fn reason(output: &Output, name: &str) -> String {
    let json = output.json();
    let items = json["items"].as_array().unwrap_or_else(|| panic!("no items\n{output}"));
    let item = items.iter().find(|item| item["name"] == name);
    let item = item.unwrap_or_else(|| panic!("no item {name}\n{output}"));
    item["reason"].as_str().unwrap_or_default().to_owned()
}

/// Returns a field as text.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Returns the keys of a JSON object, sorted.
pub(super) fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Reads a JSON file.
pub(super) fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // An engine may outlive a test run, so the name is new in every run.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("b{:x}-{count}t", now.as_millis() & 0xffff_ffff)
}
