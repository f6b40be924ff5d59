//! `docs/migrating.md`: every command line in its table does what the page says.

use creel_testkit::docker::{ContainerSpec, Labels};
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::world::World;

use super::bench::{Bench, results};

const PAGE: &str = include_str!("../../../../../docs/migrating.md");

/// Everything that the fixture makes.
const ALL: [&str; 10] = [
    "c-bench-exited",
    "c-bench-running",
    "c-created",
    "c-exited",
    "c-job",
    "c-running",
    "n-bench",
    "n-job",
    "v-bench",
    "v-plain",
];

/// What each command releases from the fixture.
fn releases(command: &str) -> &'static [&'static str] {
    match command {
        "creel ls"
        | "creel ls --kind container"
        | "creel ls --kind container --state exited"
        | "creel sweep --preset stopped"
        // Nothing here is that old; see below.
        | "creel sweep --kind container --older-than 24h --apply"
        | "creel sweep --kind container --older-than 2d --apply" => &[],
        "creel sweep --preset stopped --apply"
        | "creel sweep --preset default --apply"
        | "creel sweep --preset default --fail-fast --apply"
        | "creel sweep --preset default --provider docker --apply" => {
            &["c-bench-exited", "c-exited"]
        }
        "creel sweep --preset aggressive --apply" => &["c-bench-exited", "c-created", "c-exited"],
        "creel sweep --kind container --label terminal-bench --apply"
        | "creel sweep --kind container --label terminal-bench --fail-fast --apply"
        | "creel sweep --kind container --label terminal-bench --stop-timeout 10s --apply" => {
            &["c-bench-exited", "c-bench-running"]
        }
        "creel sweep --label terminal-bench --apply" => {
            &["c-bench-exited", "c-bench-running", "n-bench", "v-bench"]
        }
        "creel sweep --project my-job --apply" => &["c-job", "n-job"],
        other => panic!("say here what `{other}` does"),
    }
}

/// Returns the commands of the page's table, in order, each once.
fn commands() -> Vec<String> {
    let section = PAGE.split("\n## ").find(|part| part.starts_with("Command lines")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut commands: Vec<String> = Vec::new();
    for row in rows {
        // No cell holds a bar of its own.
        let cell = row.split('|').nth(2).unwrap().trim();
        let command = cell.trim_matches('`').to_owned();
        assert!(command.starts_with("creel "), "{row}");
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

/// Makes what is missing of the fixture.
fn furnish(bench: &Bench) {
    let there = bench.there();
    let missing = |name: &str| !there.contains(&name.to_owned());
    let docker = bench.docker();
    let bench_label = Labels::from([("terminal-bench".to_owned(), "task-1".to_owned())]);
    let job = Labels::from([("com.docker.compose.project".to_owned(), "my-job".to_owned())]);
    let none = Labels::new();
    for (name, labels) in [("-running", &none), ("-bench-running", &bench_label), ("-job", &job)] {
        if missing(&format!("c{name}")) {
            docker.run(&ContainerSpec::sleeping(&bench.named(name)).labels(labels)).unwrap();
        }
    }
    for (name, labels) in [("-exited", &none), ("-bench-exited", &bench_label)] {
        if missing(&format!("c{name}")) {
            let spec = ContainerSpec::exiting(&bench.named(name)).labels(labels);
            docker.run_to_exit(&spec).unwrap();
        }
    }
    if missing("c-created") {
        docker.create(&ContainerSpec::exiting(&bench.named("-created"))).unwrap();
    }
    for (name, labels) in [("-bench", &bench_label), ("-job", &job)] {
        if missing(&format!("n{name}")) {
            docker.create_network(&bench.named(name), labels).unwrap();
        }
    }
    for (name, labels) in [("-bench", &bench_label), ("-plain", &none)] {
        if missing(&format!("v{name}")) {
            docker.create_volume(&bench.named(name), labels).unwrap();
        }
    }
    assert_eq!(bench.there(), ALL);
}

#[test]
fn every_command_line_in_the_table_does_what_the_page_says() {
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let bench = Bench::on(private.engine());
    let commands = commands();
    assert!(commands.len() >= 14, "{commands:?}");
    for command in commands {
        furnish(&bench);
        let line = command.trim_start_matches("creel ");
        let output = bench.run(line).expect_code(0);
        let released = releases(&command);
        let left: Vec<&str> = ALL.into_iter().filter(|name| !released.contains(name)).collect();
        assert_eq!(bench.there(), left, "{output}");
        if let Some(age) = ["24h", "2d"].iter().find(|age| line.contains(**age)) {
            // Age cannot be faked on a real engine, so the same line with another age.
            let output = bench.run(&format!("{} --json", line.replace(age, "0s"))).expect_code(0);
            assert_eq!(results(&output, "gone").len(), 6, "{output}");
        }
    }
    private.stop().unwrap();
}

#[test]
fn a_list_shows_the_states_that_the_page_names() {
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let bench = Bench::on(private.engine());
    furnish(&bench);
    let lines = |line: &str| {
        let output = bench.run(line).expect_code(0);
        output.stdout.lines().filter(|row| row.contains(&bench.name)).count()
    };
    assert_eq!(lines("ls --kind container"), 6);
    assert_eq!(lines("ls --kind container --state exited"), 2);
    assert_eq!(lines("ls"), ALL.len());
    assert_eq!(World::snapshot(bench.engine()).unwrap().len(), ALL.len() + 1, "and the image");
    private.stop().unwrap();
}
