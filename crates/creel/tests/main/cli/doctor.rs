//! `creel doctor` and `creel config`: what works here, and the origin of settings.

use std::fs;
use std::os::unix::net::UnixListener;

use creel_testkit::creel::Output;

use super::fixture::{CliFixture, text};

/// Returns the status of one check.
fn status(output: &Output, name: &str) -> String {
    let json = output.json();
    let checks = json["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    text(check.unwrap_or_else(|| panic!("{output}")), "status").to_owned()
}

#[test]
fn with_a_working_engine_every_check_passes() {
    let fixture = CliFixture::new();
    let output = fixture.run("doctor --json").expect_code(0);
    assert_eq!((&output.json()["version"], &output.json()["healthy"]), (&1.into(), &true.into()));
    for check in ["state directory", "ledger", "watchdog", "docker", "process"] {
        assert_eq!(status(&output, check), "ok", "{check}\n{output}");
    }
    let shown = fixture.run("doctor").expect_code(0);
    assert!(
        shown.stdout.contains("Docker Engine 2") && shown.stdout.contains("(API 1."),
        "{shown}"
    );
}

#[test]
fn without_docker_there_is_a_note_and_no_problem() {
    let fixture = CliFixture::new();
    let output = fixture.creel_without_docker().run(["doctor", "--json"]).expect_code(0);
    assert_eq!(status(&output, "docker"), "note");
    assert_eq!(output.json()["healthy"], true);
    let shown = fixture.creel_without_docker().run(["doctor"]).expect_code(0);
    assert!(shown.stderr.contains("hint: docker: start an engine or set DOCKER_HOST"), "{shown}");
}

#[test]
fn a_dead_engine_is_a_problem_with_its_own_exit_code() {
    let fixture = CliFixture::new();
    let socket = fixture.path("dead.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let creel = fixture.creel().env("DOCKER_HOST", format!("unix://{}", socket.display()));
    let output = creel.run(["doctor", "--json"]).expect_code(7);
    assert_eq!(status(&output, "docker"), "problem");
    assert_eq!(status(&output, "process"), "ok");
    let count = output.json()["checks"].as_array().unwrap().len();
    let message = format!("error[CR0020]: 1 of {count} checks found a problem: docker");
    assert!(output.stderr.contains(&message), "{output}");
}

#[test]
fn a_home_that_cannot_be_used_is_a_problem() {
    let fixture = CliFixture::new();
    let file = fixture.path("file");
    fs::write(&file, "").unwrap();
    for home in [file.clone(), file.join("below")] {
        let creel = fixture.creel_without_docker().env("CREEL_HOME", &home);
        let output = creel.run(["doctor", "--json"]).expect_code(2);
        assert_eq!(status(&output, "state directory"), "problem", "{output}");
        assert!(
            output.stderr.contains("error[CR0015]: 1 of 6 checks found a problem: state directory"),
            "{output}"
        );
    }
}

#[test]
fn settings_show_their_origin() {
    let fixture = CliFixture::new();
    fixture.configure("[retry]\nretries = 5\n");
    let output = fixture.run("config show --origin").expect_code(0);
    let line = |key: &str| {
        let line = output.stdout.lines().find(|line| line.starts_with(key));
        line.unwrap_or_else(|| panic!("{output}")).to_owned()
    };
    let file = fixture.state().join("config.toml").display().to_string();
    assert!(line("retry.retries").contains('5') && line("retry.retries").contains(&file));
    assert!(line("retry.factor").contains("default"));
    let output = fixture.run("config show --json").expect_code(0);
    let settings = output.json();
    let retries = settings["settings"].as_array().unwrap().iter();
    let retries = retries.filter(|setting| setting["key"] == "retry.retries");
    assert_eq!(retries.map(|setting| text(setting, "value")).collect::<Vec<_>>(), ["5"]);
}

#[test]
fn the_printed_defaults_are_a_valid_settings_file() {
    let fixture = CliFixture::new();
    let defaults = fixture.run("config defaults").expect_code(0).stdout;
    assert!(defaults.contains("[retry]") && defaults.contains("# [[protect]]"));
    fixture.configure(&defaults);
    fixture.run("ls").expect_code(0);
}

#[test]
fn an_unknown_setting_stops_every_command_that_reads_settings() {
    let fixture = CliFixture::new();
    fixture.configure("[[protect]]\nnmae = \"db-*\"\n");
    for line in [
        "ls",
        "sweep",
        "sweep --apply --owned",
        "apply plan.json",
        "stop x",
        "rm x",
        "reconcile",
        "ledger",
        "doctor",
        "config show",
        "dev hold --directory --for 1ms",
        "demo",
    ] {
        let output = fixture.run(line).expect_code(2);
        assert!(output.stderr.starts_with("error[CR0003]: "), "{output}");
        assert!(output.stderr.contains("nmae") && output.stderr.contains("`name`"), "{output}");
        assert!(output.stderr.contains("\n\nhint: creel config defaults"), "{output}");
    }
    for line in ["explain CR0003", "completions bash", "config defaults", "--help", "--version"] {
        fixture.run(line).expect_code(0);
    }
}
