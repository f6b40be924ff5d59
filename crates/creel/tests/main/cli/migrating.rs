//! `docs/migrating.md`: every command line in its table does what the page says.

use std::collections::BTreeSet;

use creel_testkit::creel::Output;
use creel_testkit::docker::{ContainerSpec, Labels};
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::inventory::Inventory;
use serde_json::json;

use super::cloud::{Cloud, stem};
use super::fixture::{CliFixture, results, run};

const PAGE: &str = include_str!("../../../../../docs/migrating.md");

/// Everything that the fixture creates: containers, networks, sandboxes, volumes.
const ALL: [&str; 19] = [
    "c-bench-exited",
    "c-bench-running",
    "c-created",
    "c-exited",
    "c-job",
    "c-running",
    "n-bench",
    "n-job",
    "s-ancient",
    "s-archived",
    "s-archived-old",
    "s-bench",
    "s-error",
    "s-failed",
    "s-running",
    "s-running-old",
    "s-stopped",
    "v-bench",
    "v-plain",
];

/// The sandboxes: name, state, and how many hours ago they were created and last active.
///
/// Daytona itself stops an idle running sandbox, so the idle one is paused. The failed one can
/// be recovered: Daytona keeps any other for days after its delete.
const SANDBOXES: [(&str, &str, u64, u64); 9] = [
    ("-ancient", "paused", 73, 73),
    ("-archived", "archived", 0, 0),
    ("-archived-old", "archived", 25, 25),
    ("-bench", "started", 0, 0),
    ("-error", "error", 0, 0),
    ("-failed", "error", 0, 0),
    ("-running", "started", 0, 0),
    ("-running-old", "started", 25, 0),
    ("-stopped", "stopped", 0, 0),
];

/// What each command releases from the fixture.
fn releases(command: &str) -> Vec<&'static str> {
    let exited = ["c-bench-exited", "c-exited"];
    let failed = ["s-error", "s-failed", "s-stopped"];
    let old = ["s-ancient", "s-archived-old", "s-running-old"];
    let archived = ["s-archived", "s-archived-old"];
    match command {
        "creel ls"
        | "creel ls --provider daytona"
        | "creel ls --provider daytona --state stopped"
        | "creel ls --kind container"
        | "creel ls --kind container --state exited"
        | "creel sweep --provider daytona --preset stopped"
        | "creel sweep --provider daytona --older-than 1d"
        | "creel sweep --provider docker --preset stopped"
        | "creel sweep --preset default"
        // Nothing here belongs to Harbor; the recipes have their own tests.
        | "creel sweep --recipe harbor"
        | "creel sweep --recipe harbor --apply"
        | "creel guard --pre-sweep --recipe harbor -- harbor run …"
        | "creel guard -- harbor run …"
        // Nothing here is that old and stopped; see below.
        | "creel guard --pre-sweep --older-than 2d -- harbor run …"
        // No container here is that old; see below.
        | "creel sweep --kind container --older-than 24h --apply"
        | "creel sweep --kind container --older-than 48h --apply" => Vec::new(),
        "creel sweep --provider daytona --preset stopped --apply" => failed.to_vec(),
        "creel sweep --provider daytona --older-than 1d --apply"
        | "creel sweep --provider daytona --older-than 1d --fail-fast --apply"
        | "creel sweep --kind container --kind sandbox --older-than 1d --apply" => old.to_vec(),
        "creel sweep --provider daytona --older-than 1d --idle-for 1d --apply" => {
            vec!["s-ancient", "s-archived-old"]
        }
        "creel sweep --kind sandbox --older-than 2d --apply"
        | "creel sweep --kind container --kind sandbox --older-than 2d --apply" => {
            vec!["s-ancient"]
        }
        "creel sweep --provider docker --preset stopped --apply"
        | "creel sweep --preset default --provider docker --apply" => exited.to_vec(),
        "creel guard --pre-sweep --older-than 1d -- harbor run …" => vec!["s-archived-old"],
        "creel sweep --preset default --provider daytona --apply" => {
            [&failed[..], &["s-archived-old"]].concat()
        }
        "creel sweep --preset default --apply"
        | "creel guard --pre-sweep -- harbor run …"
        | "creel sweep --preset default --fail-fast --apply" => {
            [&exited[..], &failed, &["s-archived-old"]].concat()
        }
        "creel sweep --preset aggressive --provider daytona --apply" => {
            [&failed[..], &archived, &old].concat()
        }
        "creel sweep --preset aggressive --apply" => {
            [&exited[..], &["c-created"], &failed, &archived, &old].concat()
        }
        "creel sweep --kind container --label terminal-bench --apply"
        | "creel sweep --kind container --label terminal-bench --fail-fast --apply"
        | "creel sweep --kind container --label terminal-bench --stop-timeout 10s --apply" => {
            vec!["c-bench-exited", "c-bench-running"]
        }
        "creel sweep --provider docker --label terminal-bench --apply" => {
            vec!["c-bench-exited", "c-bench-running", "n-bench", "v-bench"]
        }
        "creel sweep --label terminal-bench --apply" => {
            vec!["c-bench-exited", "c-bench-running", "n-bench", "s-bench", "v-bench"]
        }
        "creel sweep --project my-job --apply" => vec!["c-job", "n-job"],
        "creel rm sandbox/NAME" => vec!["s-running"],
        other => panic!("say here what `{other}` does"),
    }
}

/// A private engine and cloud, and the objects in them.
struct MigrationFixture {
    private: PrivateEngine,
    cli: CliFixture,
    cloud: Cloud,
}

impl MigrationFixture {
    fn new() -> Self {
        let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
        let (cli, cloud) = (CliFixture::on(private.engine()), Cloud::start());
        Self { private, cli, cloud }
    }

    /// Runs a command of the page, with a sandbox of the fixture as its NAME, and a benchmark
    /// that has nothing to do.
    fn run(&self, line: &str) -> Output {
        let line = line.replace("NAME", &self.sandbox_named("-running"));
        let line = line.replace("harbor run …", "true");
        run(&self.cloud.given_to(self.cli.creel()), &line)
    }

    fn sandbox_named(&self, suffix: &str) -> String {
        let wanted = self.cli.named(suffix);
        let mut names = self.cloud.names().into_iter();
        names.rfind(|name| stem(name) == wanted).unwrap_or_default()
    }

    /// Returns the short names of everything in both providers, sorted.
    fn there(&self) -> Vec<String> {
        let mut all = self.cli.there();
        let sandboxes = self.cloud.there().into_iter();
        all.extend(sandboxes.map(|name| name.replace(&self.cli.name, "s")));
        all.sort();
        all
    }

    /// Creates the missing objects of the fixture.
    fn create_missing(&self) {
        let there = self.there();
        for (name, state, age, idle) in SANDBOXES {
            if there.contains(&format!("s{name}")) {
                continue;
            }
            let labels =
                if name == "-bench" { json!({ "terminal-bench": "1" }) } else { json!({}) };
            let (age, idle) = (age * 3600, idle * 3600);
            let seed = json!({
                "state": state, "age_seconds": age, "idle_seconds": idle, "labels": labels,
                "recoverable": true
            });
            self.cloud.plant(&self.cli.named(name), seed);
        }
        create_missing(&self.cli, &there);
        assert_eq!(self.there(), ALL);
    }
}

/// Returns the distinct commands of the page's table, in sequence.
fn commands() -> Vec<String> {
    let section = PAGE.split("\n## ").find(|part| part.starts_with("Command lines")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut commands: Vec<String> = Vec::new();
    for row in rows {
        // No cell contains a bar.
        let cell = row.split('|').nth(2).unwrap().trim();
        let command = cell.trim_matches('`').to_owned();
        assert!(command.starts_with("creel "), "{row}");
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

/// Creates the missing objects of the fixture on the engine.
fn create_missing(cli: &CliFixture, there: &[String]) {
    let missing = |name: &str| !there.contains(&name.to_owned());
    let docker = cli.docker();
    let bench_label = Labels::from([("terminal-bench".to_owned(), "task-1".to_owned())]);
    let job = Labels::from([("com.docker.compose.project".to_owned(), "my-job".to_owned())]);
    let none = Labels::new();
    for (name, labels) in [("-running", &none), ("-bench-running", &bench_label), ("-job", &job)] {
        if missing(&format!("c{name}")) {
            docker.run(&ContainerSpec::sleeping(&cli.named(name)).labels(labels)).unwrap();
        }
    }
    for (name, labels) in [("-exited", &none), ("-bench-exited", &bench_label)] {
        if missing(&format!("c{name}")) {
            let spec = ContainerSpec::exiting(&cli.named(name)).labels(labels);
            docker.run_to_exit(&spec).unwrap();
        }
    }
    if missing("c-created") {
        docker.create(&ContainerSpec::exiting(&cli.named("-created"))).unwrap();
    }
    for (name, labels) in [("-bench", &bench_label), ("-job", &job)] {
        if missing(&format!("n{name}")) {
            docker.create_network(&cli.named(name), labels).unwrap();
        }
    }
    for (name, labels) in [("-bench", &bench_label), ("-plain", &none)] {
        if missing(&format!("v{name}")) {
            docker.create_volume(&cli.named(name), labels).unwrap();
        }
    }
}

#[test]
fn every_command_line_in_the_table_does_what_the_page_says() {
    let fixture = MigrationFixture::new();
    let commands = commands();
    assert!(commands.len() >= 25, "{commands:?}");
    for command in commands {
        fixture.create_missing();
        let line = command.trim_start_matches("creel ");
        let output = fixture.run(line).expect_code(0);
        let released = releases(&command);
        let left: Vec<&str> = ALL.into_iter().filter(|name| !released.contains(name)).collect();
        assert_eq!(fixture.there(), left, "{output}");
        check_age(&fixture, line);
    }
    fixture.private.stop().unwrap();
}

/// Runs a line for old containers with another age, because a real engine's clock cannot be set.
fn check_age(fixture: &MigrationFixture, line: &str) {
    let ages = ["24h", "48h", "1d", "2d"];
    let Some(age) = ages.iter().find(|age| line.contains(&format!("--older-than {age}"))) else {
        return;
    };
    if line.contains("--pre-sweep") {
        return check_pre_sweep(fixture, &line.replace(age, "0s"));
    }
    if !line.contains("--kind container") {
        return;
    }
    let kinds = if line.contains("--kind sandbox") { "cs" } else { "c" };
    let there = fixture.there().into_iter().filter(|name| name.starts_with(|k| kinds.contains(k)));
    let output = fixture.run(&format!("{} --json", line.replace(age, "0s"))).expect_code(0);
    assert_eq!(results(&output, "gone").len(), there.count(), "{output}");
}

/// Runs a guard without a minimum age: then the preset applies at any age.
fn check_pre_sweep(fixture: &MigrationFixture, line: &str) {
    fixture.create_missing();
    let output = fixture.run(line).expect_code(0);
    let released = releases("creel sweep --preset default --apply");
    let left: Vec<&str> = ALL.into_iter().filter(|name| !released.contains(name)).collect();
    assert_eq!(fixture.there(), left, "{output}");
}

#[test]
fn a_list_shows_the_states_that_the_page_names() {
    let fixture = MigrationFixture::new();
    fixture.create_missing();
    let lines = |line: &str| {
        let output = fixture.run(line).expect_code(0);
        output.stdout.lines().filter(|row| row.contains(&fixture.cli.name)).count()
    };
    assert_eq!(lines("ls --kind container"), 6);
    assert_eq!(lines("ls --kind container --state exited"), 2);
    assert_eq!(lines("ls --provider daytona"), SANDBOXES.len());
    assert_eq!(lines("ls --provider daytona --state stopped"), 1);
    assert_eq!(lines("ls"), ALL.len());
    let on_engine = Inventory::snapshot(fixture.cli.engine()).unwrap().len();
    assert_eq!(on_engine + SANDBOXES.len(), ALL.len() + 1, "and the image");
    fixture.private.stop().unwrap();
}

#[test]
fn every_variable_the_page_names_is_in_the_reference() {
    let section =
        PAGE.split("\n## ").find(|part| part.starts_with("What the scripts read")).unwrap();
    let reference = include_str!("../../../../../docs/reference/environment.md");
    let names = section.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let ours = |name: &&str| ["CREEL_", "DAYTONA_", "DOCKER_"].iter().any(|p| name.starts_with(p));
    let variables: BTreeSet<&str> = names.filter(ours).collect();
    assert!(variables.len() >= 10, "{variables:?}");
    for variable in variables {
        assert!(reference.contains(&format!("`{variable}`")), "{variable}");
    }
}
