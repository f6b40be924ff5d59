//! Fixture for runs of one provider in one home, with faults at every moment of a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use creel_model::provider::ProviderName;
use creel_testkit::creel::{Creel, Running};
use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::wait::{eventually, eventually_some};
use serde_json::{Value, json};

use crate::cli::cloud::Cloud;
use crate::support::{Home, LEDGER_LABEL, PATIENCE, assignments_of, kill, unique};

/// Settings with waits that are short enough for a test.
const SETTINGS: &str = "[retry]\ninitial = \"50ms\"\n[ledger]\nintent_window = \"2s\"\n";
/// The time limit of one run on a loaded machine.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// Counts the runs of this process, so that each one runs unique commands.
static RUNS_STARTED: AtomicU32 = AtomicU32::new(0);

/// The state of a run when a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// In the middle of a step of the checklist.
    Setup,
    /// While the agent works.
    Turn,
    /// While the agent waits for an answer.
    Question,
    /// While a pause rule holds it.
    Pause,
    /// In the middle of the teardown of a successful run.
    Teardown,
}

impl Moment {
    pub(super) const ALL: [Self; 5] =
        [Self::Setup, Self::Turn, Self::Question, Self::Pause, Self::Teardown];

    /// Returns the phase of the run at this moment.
    pub(super) fn phase(self) -> &'static str {
        match self {
            Self::Setup => "bootstrapping",
            Self::Turn => "running",
            Self::Question => "awaiting_input",
            Self::Pause => "paused",
            Self::Teardown => "releasing",
        }
    }

    /// Returns a workflow that reaches this moment, and stays there as long as `sleep N` does.
    pub(super) fn workflow(self, sleep: &str) -> String {
        match self {
            Self::Setup => format!(
                "[[setup]]\nname = \"wait\"\nrun = \"{sleep}\"\ntimeout = \"10m\"\n{}",
                agent("echo one; echo two")
            ),
            Self::Turn => agent(&format!("echo one; {sleep}; echo two")),
            Self::Question => agent("echo one; \"$CREEL_BRIDGE\" ask 'May I?'; echo two"),
            Self::Pause => {
                format!("{}[pause]\nafter_turns = 1\n", agent_twice("echo one", "two"))
            }
            Self::Teardown => format!(
                "{}[[teardown]]\nname = \"wait\"\nrun = \"{sleep}\"\ntimeout = \"10m\"\n",
                agent("echo one; echo two")
            ),
        }
    }

    /// Returns whether a `sleep` runs at this moment.
    fn sleeps(self) -> bool {
        matches!(self, Self::Setup | Self::Turn | Self::Teardown)
    }
}

/// Returns a workflow whose agent is a script with one turn.
pub(super) fn agent(script: &str) -> String {
    format!(
        "[runtime]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", '''{script}''']\n\
         [task]\nprompt = \"go\"\n"
    )
}

/// Returns a workflow whose agent is a script with two turns.
pub(super) fn agent_twice(script: &str, second: &str) -> String {
    format!("{}follow_ups = [\"{second}\"]\n", agent(script))
}

/// A provider, and a home that uses it.
pub(super) struct RunFixture {
    pub(super) provider: ProviderName,
    pub(super) home: Home,
    pub(super) cloud: Option<Cloud>,
    pub(super) engine: Option<Engine>,
    /// More keys of the sandbox table, besides the provider and the lease.
    pub(super) sandbox: String,
    foreign: ForeignObjects,
}

/// Objects that are not ours, and must be unchanged when all of ours are gone.
#[derive(Default)]
struct ForeignObjects {
    /// Decoys on the engine.
    on_engine: Option<Decoys>,
    /// Decoys in the cloud with their original state, by id.
    in_cloud: Vec<(String, Value)>,
    /// A process that resembles one of a sandbox.
    process: Option<Child>,
}

impl Drop for ForeignObjects {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended by itself, which the test has noticed.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl RunFixture {
    /// Sets up a provider.
    pub(super) fn set(provider: ProviderName) -> Self {
        let engine = (provider == creel_docker::NAME).then(Engine::from_env);
        let cloud = (provider == creel_daytona::NAME).then(|| Cloud::with(&["--fast"]));
        let mut home = match &engine {
            Some(engine) => Home::on(engine),
            None => Home::without_engine(),
        };
        let mut creel = home.creel.clone().deadline(RUN_PATIENCE);
        if let Some(cloud) = &cloud {
            creel = cloud.given_to(creel);
        }
        home.creel = creel;
        home.configure(SETTINGS);
        let sandbox = match provider {
            creel_docker::NAME => {
                format!("image = \"{}\"\nnetwork = \"none\"\n", image::REFERENCE)
            }
            _ => String::new(),
        };
        Self { provider, home, cloud, engine, sandbox, foreign: ForeignObjects::default() }
    }

    /// Plants decoys of the resources of runs.
    pub(super) fn plant(&mut self, name: &str) {
        let ledger = self.home.ledger_id();
        let decoy_id = format!("{ledger}x");
        if let Some(engine) = &self.engine {
            let original = Lookalike {
                name: unique(name),
                label_key: LEDGER_LABEL.to_owned(),
                label_value: ledger,
            };
            self.foreign.on_engine = Some(Decoys::plant(engine, &original).unwrap());
        }
        if let Some(cloud) = &self.cloud {
            for labels in [json!({}), json!({ LEDGER_LABEL: decoy_id })] {
                let id = cloud.plant("creel-foreign", json!({ "labels": labels }));
                let row = cloud.sandbox(&id);
                self.foreign.in_cloud.push((id, row));
            }
        }
        let mut process = std::process::Command::new("sleep");
        process.arg("100000").env("CREEL_RESOURCE", decoy_id);
        self.foreign.process = Some(process.spawn().unwrap());
    }

    /// Asserts that every decoy is unchanged.
    #[track_caller]
    pub(super) fn assert_foreign_untouched(&mut self) {
        if let Some(decoys) = &self.foreign.on_engine {
            decoys.assert_untouched();
        }
        for (id, planted) in &self.foreign.in_cloud {
            let there = self.cloud.as_ref().unwrap().sandbox(id);
            assert_eq!(&there, planted, "a decoy was touched");
        }
        let process = self.foreign.process.as_mut().expect("decoys were planted");
        assert!(process.try_wait().unwrap().is_none(), "a foreign process was ended");
    }

    /// Writes a workflow for this provider, with this lease.
    pub(super) fn workflow(&self, lease: &str, body: &str) -> PathBuf {
        let text = format!(
            "name = \"cell\"\n[sandbox]\nprovider = \"{}\"\nlease = \"{lease}\"\n{}{body}",
            self.provider, self.sandbox
        );
        let number = RUNS_STARTED.fetch_add(1, Ordering::SeqCst);
        let path = self.home.path(&format!("workflow-{number}.toml"));
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts a run in the foreground, and waits until it is on record.
    pub(super) fn start(&self, lease: &str, body: &str) -> TestRun<'_> {
        self.start_by(&self.home.creel, lease, body)
    }

    /// Like [`RunFixture::start`], with another environment.
    pub(super) fn start_by(&self, creel: &Creel, lease: &str, body: &str) -> TestRun<'_> {
        let path = self.workflow(lease, body);
        let running = creel.spawn(["run".as_ref(), "--json".as_ref(), path.as_os_str()]);
        let run = eventually_some(PATIENCE, || {
            let stderr = running.stderr();
            // A line may be read before it is complete.
            let whole = stderr.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            whole.filter_map(|line| line.strip_prefix("run ")).next().map(str::to_owned)
        });
        let run = run.unwrap_or_else(|| panic!("no run: {}", running.stderr()));
        TestRun { fixture: self, run, driver: Some(running) }
    }

    /// Starts a run in the background.
    pub(super) fn detach(&self, lease: &str, body: &str) -> TestRun<'_> {
        let path = self.workflow(lease, body);
        let output = self.home.creel.run(["run".as_ref(), "--detach".as_ref(), path.as_os_str()]);
        let run = output.expect_code(0).stdout.trim().to_owned();
        TestRun { fixture: self, run, driver: None }
    }

    /// Runs a workflow to its end, and returns the last line of output.
    #[track_caller]
    pub(super) fn run(&self, code: i32, body: &str) -> Value {
        let path = self.workflow("10m", body);
        let args = ["run".as_ref(), "--json".as_ref(), path.as_os_str()];
        self.home.creel.run(args).expect_code(code).json()
    }

    /// Asserts that nothing of any run is left: on record, at the provider, or on this machine.
    #[track_caller]
    pub(super) fn assert_nothing_left(&self) {
        let open = self.home.open_records();
        assert!(open.is_empty(), "still open: {open:#?}");
        assert_eq!(self.home.on_machine(), Vec::<String>::new());
        if let Some(engine) = &self.engine {
            let foreign = self.foreign.on_engine.as_ref().map(Decoys::ids).unwrap_or_default();
            let left =
                self.home.on_engine(engine).filter(|one| !foreign.contains(&one.id.as_str()));
            assert!(left.is_empty(), "{left:#?}");
        }
    }
}

/// Returns a `sleep` command that no other process runs.
pub(super) fn unique_sleep() -> String {
    let number = RUNS_STARTED.fetch_add(1, Ordering::SeqCst);
    format!("sleep {}{number:03}", std::process::id())
}

/// Returns a `sleep` command of a few seconds that no other process runs.
pub(super) fn short_sleep() -> String {
    let number = RUNS_STARTED.fetch_add(1, Ordering::SeqCst);
    format!("sleep 4.0{}{number:03}", std::process::id())
}

/// One run.
pub(super) struct TestRun<'a> {
    pub(super) fixture: &'a RunFixture,
    pub(super) run: String,
    /// The process that drives it in the foreground.
    pub(super) driver: Option<Running>,
}

impl TestRun<'_> {
    fn creel(&self) -> &Creel {
        &self.fixture.home.creel
    }

    /// Returns the output of `creel show`.
    #[track_caller]
    pub(super) fn show(&self) -> Value {
        self.creel().run(["show", &self.run, "--json"]).expect_code(0).json()
    }

    /// Returns the events.
    #[track_caller]
    pub(super) fn events(&self) -> Vec<Value> {
        let lines = self.creel().run(["events", &self.run, "--json"]).expect_code(0).stdout;
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the standard output of the agent, by turn.
    pub(super) fn output(&self) -> String {
        let mut output = String::new();
        for event in self.events().iter().filter(|event| event["event"] == "text") {
            if event["stream"] == "output" {
                output.push_str(event["text"].as_str().unwrap());
            }
        }
        output
    }

    /// Waits until the run is in a phase.
    #[track_caller]
    pub(super) fn await_phase(&self, phase: &str) {
        let mut last = Value::Null;
        let came = eventually(PATIENCE, || {
            last = self.show();
            last["phase"] == phase
        });
        assert!(came, "not {phase}: {last:#}\n{}", self.stderr());
    }

    /// Waits until the run is at a moment, and the process to be killed runs.
    #[track_caller]
    pub(super) fn await_moment(&self, moment: Moment, sleep: &str) {
        if moment.sleeps() {
            let sleeps = eventually(PATIENCE, || !processes_of(sleep).is_empty());
            assert!(sleeps, "{moment:?} was not reached: {:#}\n{}", self.show(), self.stderr());
        }
        self.await_phase(moment.phase());
    }

    /// Waits until the agent has written this text.
    #[track_caller]
    pub(super) fn await_output(&self, text: &str) {
        let came = eventually(PATIENCE, || self.output().contains(text));
        assert!(came, "{text} was not written: {:#?}", self.events());
    }

    /// Returns the standard error of the driver so far.
    pub(super) fn stderr(&self) -> String {
        self.driver.as_ref().map(Running::stderr).unwrap_or_default()
    }

    /// Returns the process that drives the run.
    fn owner(&self) -> i32 {
        let listed = self.creel().run(["runs", "--json"]).expect_code(0).json();
        let runs = listed["runs"].as_array().unwrap();
        let run = runs.iter().find(|run| run["run"] == self.run.as_str()).unwrap();
        i32::try_from(run["owner"]["pid"].as_i64().unwrap()).unwrap()
    }

    /// Waits until the last started process drives the run.
    pub(super) fn await_owner(&self) {
        let driver = self.driver.as_ref().unwrap().pid().cast_signed();
        assert!(eventually(PATIENCE, || self.owner() == driver), "{}", self.stderr());
    }

    /// Kills the driver of the run, and only that.
    pub(super) fn kill_driver(&mut self) {
        match self.driver.take() {
            Some(driver) => crate::support::assert_killed(&driver.kill()),
            None => {
                let owner = self.owner();
                kill(owner);
                let path = format!("/proc/{owner}/cmdline");
                // A zombie has no command line any more.
                let dead = || fs::read(&path).unwrap_or_default().is_empty();
                assert!(eventually(PATIENCE, dead), "{owner} lives on");
            }
        }
    }

    /// Kills the watchdog of the driver.
    pub(super) fn kill_watchdog(&self) {
        let driver = self.driver.as_ref().unwrap().pid();
        let children = fs::read_to_string(format!("/proc/{driver}/task/{driver}/children"));
        let pids = children.unwrap_or_default();
        let is_watchdog = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"watchdog")
        };
        let watchdog = pids.split_whitespace().find(is_watchdog).expect("it has a watchdog");
        kill(watchdog.parse().unwrap());
    }

    /// Returns the open record of the main resource: a tree, a container, a sandbox.
    pub(super) fn body(&self) -> Value {
        let kinds = ["process", "container", "sandbox"];
        let is_body = |record: &Value| {
            record["run"] == self.run.as_str() && kinds.iter().any(|kind| record["kind"] == *kind)
        };
        let records = self.fixture.home.open_records();
        records.into_iter().find(is_body).expect("a sandbox is on record")
    }

    /// Freezes the control groups of a process sandbox. Returns whether this machine can.
    pub(super) fn freeze_sandbox(&self) -> bool {
        let body = self.body();
        let id = body["id"].as_str().unwrap();
        let files = [
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1"),
            ("/sys/fs/cgroup", "cgroup.freeze", "1"),
        ];
        // Not every machine has all of these.
        let written = files
            .map(|(parent, file, value)| fs::write(format!("{parent}/{id}/{file}"), value).is_ok());
        written.contains(&true)
    }

    /// Pauses the container of a run from outside.
    pub(super) fn pause_container(&self) {
        let body = self.body();
        let docker = self.fixture.engine.as_ref().unwrap().docker();
        docker.cli(&["pause", body["id"].as_str().unwrap()]).unwrap();
    }

    /// Kills the sandbox from outside.
    pub(super) fn kill_sandbox(&self) {
        let body = self.body();
        let id = body["id"].as_str().unwrap();
        match self.fixture.provider {
            creel_process::NAME => {
                let marked = assignments_of("CREEL_RESOURCE").into_iter();
                let ours: Vec<i32> = marked
                    .filter(|(_, resource)| body["resource"] == resource.as_str())
                    .map(|(pid, _)| pid)
                    .collect();
                assert!(!ours.is_empty(), "there is no tree to kill");
                ours.into_iter().for_each(kill);
            }
            creel_docker::NAME => {
                let docker = self.fixture.engine.as_ref().unwrap().docker();
                docker.cli(&["kill", id]).unwrap();
            }
            _ => {
                let cloud = self.fixture.cloud.as_ref().unwrap();
                let (status, answer) =
                    cloud.ask("DELETE", &format!("sandbox/{id}?force=true"), &json!(null));
                assert_eq!(status, 200, "{answer}");
            }
        }
    }

    /// Waits until the run is over, and returns its final report.
    #[track_caller]
    pub(super) fn await_end(&self) -> Value {
        let mut last = Value::Null;
        let over = eventually(RUN_PATIENCE, || {
            last = self.show();
            ["succeeded", "failed", "cancelled"].iter().any(|phase| last["phase"] == *phase)
        });
        assert!(over, "it is not over: {last:#}\n{}", self.stderr());
        last
    }

    /// Waits for the end of the driver, and returns its last line of output.
    #[track_caller]
    pub(super) fn conclude(mut self, code: i32) -> Value {
        let driver = self.driver.take().expect("it is driven in the foreground");
        driver.wait().expect_code(code).json()
    }

    /// Asserts that the event numbers have no gaps, and that each event of the spool appears once.
    #[track_caller]
    pub(super) fn assert_events_whole(&self) {
        let events = self.events();
        for (number, event) in (1_u64..).zip(&events) {
            assert_eq!(event["sequence"], number, "{events:#?}");
        }
        let mut last = 0;
        for spooled in events.iter().filter_map(|event| event["spooled"].as_u64()) {
            assert!(spooled > last, "{spooled} after {last}: {events:#?}");
            last = spooled;
        }
    }
}

/// Returns the classes of all causes of a run, in sequence.
pub(super) fn classes(shown: &Value) -> Vec<&str> {
    shown["causes"].as_array().unwrap().iter().map(|one| one["class"].as_str().unwrap()).collect()
}

/// Returns the processes with exactly this command line.
pub(super) fn processes_of(line: &str) -> Vec<i32> {
    let wanted: Vec<u8> =
        line.split(' ').flat_map(|argument| [argument.as_bytes(), b"\0"].concat()).collect();
    let names = fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default() == wanted)
        .collect()
}

/// Returns the processes that read a spool below a directory.
pub(super) fn tails_below(directory: &Path) -> Vec<i32> {
    let names = fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let args: Vec<&str> = line.split('\0').collect();
        args.get(1) == Some(&"tail")
            && args.iter().any(|argument| Path::new(argument).starts_with(directory))
    };
    pids.filter(is_one).collect()
}
