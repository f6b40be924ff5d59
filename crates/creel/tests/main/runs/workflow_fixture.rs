//! Shared fixture of run tests: a home, a workflow, and the outcome.

use std::fs;
use std::path::PathBuf;

use creel_testkit::creel::{Output, Running};
use serde_json::Value;

use crate::support::Home;

/// Events that may only follow a complete bootstrap.
const STARTED: [&str; 4] = ["bootstrap_ok", "bridge_started", "runtime_ready", "turn_started"];

/// A home with a workflow in it.
#[derive(Debug)]
pub(super) struct WorkflowFixture {
    pub(super) home: Home,
}

/// A run that has ended.
#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) output: Output,
    /// Its last line of output.
    pub(super) report: Value,
    /// Its event log.
    pub(super) events: Vec<Value>,
}

impl WorkflowFixture {
    /// Creates a home with process sandboxes only.
    pub(super) fn new() -> Self {
        Self { home: Home::without_engine() }
    }

    /// Sets an environment variable of creel.
    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.home.creel = self.home.creel.clone().env(name, value);
        self
    }

    /// Returns the file that the agent creates first.
    pub(super) fn mark(&self) -> PathBuf {
        self.home.path("agent-ran")
    }

    /// Writes a workflow with these tables. Unless they name a runtime, its agent creates its
    /// mark and prints the commit of every repository.
    pub(super) fn write(&self, tables: &str) -> PathBuf {
        let mark = self.mark();
        let runtime = format!(
            "[runtime]\nkind = \"command\"\ncheck = [\"true\"]\n\
             command = [\"sh\", \"-c\", 'touch {}; cat > /dev/null; \
             for one in */.git; do git -C \"${{one%/.git}}\" rev-parse HEAD; done; env']\n",
            mark.display()
        );
        let runtime = if tables.contains("[runtime]") { "" } else { &runtime };
        let limits = if tables.contains("[limits]") { "" } else { "[limits]\nwall = \"2m\"\n" };
        let text = format!(
            "name = \"proof\"\n{tables}\n{runtime}\n{limits}[task]\nprompt = \"Look around\"\n"
        );
        let path = self.home.path("workflow.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts a run.
    pub(super) fn start(&self, tables: &str) -> Running {
        let path = self.write(tables);
        self.home.creel.spawn(["run", "--json", &path.display().to_string()])
    }

    /// Waits for the end of a run.
    pub(super) fn end(&self, running: Running) -> FinishedRun {
        let output = running.wait();
        let line = output.stdout.lines().last().unwrap_or_default();
        let report: Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("no report\n{output}"));
        let run = report["run"].as_str().unwrap();
        let log = self.home.creel.run(["events", run, "--json"]).expect_code(0).stdout;
        let events = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        FinishedRun { output, report, events }
    }

    /// Runs a workflow to its end.
    pub(super) fn run(&self, tables: &str) -> FinishedRun {
        self.end(self.start(tables))
    }

    /// Returns the directory of the only sandbox.
    pub(super) fn sandbox(&self) -> PathBuf {
        let found = fs::read_dir(self.home.creel.state().join("sandboxes")).unwrap();
        let mut found: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.join(".creel").is_dir());
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// Releases the sandbox that a failed run kept.
    pub(super) fn release_kept(&self) {
        let records = self.home.open_records();
        let named = records.iter().map(|record| record["resource"].as_str().unwrap());
        let args: Vec<&str> = ["rm", "--force"].into_iter().chain(named).collect();
        self.home.creel.run(args).expect_code(0);
        assert_eq!(self.home.on_machine(), Vec::<String>::new());
    }

    /// Asserts that neither bridge nor agent ever ran.
    #[track_caller]
    pub(super) fn assert_nothing_started(&self, ended: &FinishedRun) {
        let started = ended.names();
        assert!(!started.iter().any(|name| STARTED.contains(name)), "{started:?}");
        assert!(!self.mark().exists(), "the agent ran\n{}", ended.output);
    }

    /// Asserts that a run ended before its agent started, for this cause in this step, and that
    /// nothing of it is left.
    #[track_caller]
    pub(super) fn assert_stopped(&self, ended: &FinishedRun, class: &str, step: &str) {
        ended.assert_cause(class, step);
        self.assert_nothing_started(ended);
        assert_eq!(ended.report["certificate"]["verified"], true, "{}", ended.output);
        assert_eq!(self.home.on_machine(), Vec::<String>::new());
    }

    /// Asserts that the run and its agent succeeded, and that nothing of it is left.
    #[track_caller]
    pub(super) fn assert_succeeded(&self, ended: &FinishedRun) {
        assert_eq!(ended.output.code(), Some(0), "{}", ended.output);
        assert_eq!(ended.report["phase"], "succeeded", "{}", ended.output);
        assert!(self.mark().exists(), "the agent did not run\n{}", ended.output);
        assert_eq!(ended.report["certificate"]["verified"], true, "{}", ended.output);
        assert_eq!(self.home.on_machine(), Vec::<String>::new());
    }
}

impl FinishedRun {
    /// Returns the names of its events in sequence.
    pub(super) fn names(&self) -> Vec<&str> {
        self.events.iter().map(|event| event["event"].as_str().unwrap()).collect()
    }

    /// Returns a step of its checklist.
    #[track_caller]
    pub(super) fn step(&self, name: &str) -> &Value {
        let steps = self.report["checklist"].as_array().unwrap();
        let found = steps.iter().find(|step| step["step"] == name);
        found.unwrap_or_else(|| panic!("no step {name}\n{}", self.output))
    }

    /// Returns the finding of a step.
    #[track_caller]
    pub(super) fn found(&self, step: &str) -> &str {
        self.step(step)["found"].as_str().unwrap()
    }

    /// Returns how often a step was tried.
    #[track_caller]
    pub(super) fn tries(&self, step: &str) -> u64 {
        self.step(step)["tries"].as_u64().unwrap()
    }

    /// Returns the output of the agent.
    pub(super) fn text(&self) -> String {
        self.events.iter().filter_map(|event| event["text"].as_str()).collect()
    }

    /// Asserts the cause and the failed step.
    #[track_caller]
    pub(super) fn assert_cause(&self, class: &str, step: &str) {
        assert_eq!(self.output.code(), Some(5), "{}", self.output);
        assert_eq!(self.report["phase"], "failed", "{}", self.output);
        let cause = &self.report["cause"];
        assert_eq!((&cause["class"], &cause["step"]), (&class.into(), &step.into()), "{cause}");
        assert_eq!(self.step(step)["status"], "failed", "{}", self.output);
    }
}
