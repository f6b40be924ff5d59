//! `creel ls`: the output format, the filters, and providers that do not respond.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use creel_testkit::creel::Output;
use creel_testkit::docker::ContainerSpec;
use serde_json::Value;

use super::fixture::{BINARY, CliFixture, keys, text};

const RESOURCE_KEYS: [&str; 13] = [
    "created_at",
    "id",
    "kind",
    "labels",
    "last_active_at",
    "name",
    "owner",
    "project",
    "protected",
    "provider",
    "run",
    "size",
    "state",
];

/// Returns the listed names of a test without its prefix, sorted.
fn listed(fixture: &CliFixture, flags: &str) -> Vec<String> {
    let output = fixture.run(&format!("ls --json {flags}")).expect_code(0);
    let json = output.json();
    let names = json["resources"].as_array().unwrap().iter().map(|row| text(row, "name"));
    let mine = names.filter_map(|name| name.strip_prefix(&fixture.name));
    let mut mine: Vec<String> = mine.map(str::to_owned).collect();
    mine.sort();
    mine
}

fn row(output: &Output, name: &str) -> Value {
    let json = output.json();
    let rows = json["resources"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{output}")).clone()
}

#[test]
fn json_has_the_documented_format_in_one_line() {
    let fixture = CliFixture::new();
    let id = fixture.running("-web");
    let output = fixture.run("ls --json").expect_code(0);
    assert_eq!(output.stdout.lines().count(), 1);
    let json = output.json();
    assert_eq!(keys(&json), ["resources", "unfinished", "unreachable", "version", "waiting"]);
    assert_eq!((&json["version"], &json["unreachable"]), (&1.into(), &Value::Array(Vec::new())));
    for resource in json["resources"].as_array().unwrap() {
        assert_eq!(keys(resource), RESOURCE_KEYS);
    }
    let web = row(&output, &fixture.named("-web"));
    let shown = ["provider", "kind", "id", "state"].map(|key| text(&web, key));
    assert_eq!(shown, ["docker", "container", &id, "running"]);
    assert_eq!(web["labels"][fixture.key()], fixture.name.as_str());
    assert_eq!(web["protected"], false);
    assert!(web["owner"].is_null() && web["run"].is_null(), "{web}");
    assert!(text(&web, "created_at").ends_with('Z'), "{web}");
}

#[test]
fn resources_of_a_live_process_are_listed_with_their_owner() {
    let fixture = CliFixture::new();
    let hold = fixture.hold("--container IMAGE --directory");
    let output = fixture.run("ls --json --owned").expect_code(0);
    assert_eq!(output.json()["resources"].as_array().unwrap().len(), 2);
    for kind in ["container", "directory"] {
        let held = row(&output, &hold.name(kind));
        let owner = &held["owner"];
        assert_eq!(keys(owner), ["boot", "command", "host", "pid", "started_at", "state"]);
        assert_eq!(owner["pid"], hold.report["pid"]);
        assert_eq!([text(owner, "command"), text(owner, "state")], ["creel dev hold", "alive"]);
        assert_eq!(held["run"], hold.report["run"]);
        for key in ["host", "boot", "started_at"] {
            assert!(!text(owner, key).is_empty(), "{key} in {owner}");
        }
    }
    assert_eq!(hold.end().code(), Some(130));
    let output = fixture.run("ls --json --owned").expect_code(0);
    assert_eq!(output.json()["resources"], Value::Array(Vec::new()));
}

#[test]
fn each_filter_shows_the_documented_resources() {
    let fixture = CliFixture::new();
    let docker = fixture.docker();
    fixture.running("-run");
    fixture.exited("-out");
    fixture.created("-new");
    fixture.network("-net");
    fixture.volume("-vol");
    fixture.image("-img");
    let project = BTreeMap::from([("com.docker.compose.project".to_owned(), fixture.name.clone())]);
    docker.create(&ContainerSpec::exiting(&fixture.named("-compose")).labels(&project)).unwrap();
    let (name, label, key) = (&fixture.name, fixture.label(), fixture.key());

    assert_eq!(
        listed(&fixture, &format!("--label {label} --kind container")),
        ["-new", "-out", "-run"]
    );
    assert_eq!(
        listed(&fixture, &format!("--label {key} --kind network --kind volume")),
        ["-net", "-vol"]
    );
    assert_eq!(
        listed(&fixture, &format!("--label {label} --state exited --state created")),
        ["-new", "-out"]
    );
    assert_eq!(listed(&fixture, &format!("--name {name}-?e?")), ["-net", "-new"]);
    assert_eq!(listed(&fixture, &format!("--name {name}-img:*")), ["-img:latest"]);
    assert_eq!(listed(&fixture, &format!("--project {name}")), ["-compose"]);
    assert_eq!(listed(&fixture, &format!("--label {label} --provider process")), [""; 0]);
    assert_eq!(listed(&fixture, &format!("--label {label} --older-than 1h")), [""; 0]);
    assert_eq!(listed(&fixture, &format!("--label {label} --label absent")), [""; 0]);
    assert_eq!(listed(&fixture, "--owned"), [""; 0]);
    assert_eq!(listed(&fixture, &format!("--label {label} --older-than 0s")).len(), 6);
}

#[test]
fn without_docker_ls_works_and_does_not_mention_it() {
    let fixture = CliFixture::new();
    let creel = fixture.creel_without_docker();
    // The test's engine is not at a default location, so none is configured.
    let output = creel.run(["ls", "--json"]).expect_code(0);
    assert_eq!(output.json()["unreachable"], Value::Array(Vec::new()));
    assert_eq!(output.stderr, "");
    let output = creel.run(["ls", "--provider", "docker"]).expect_code(7);
    assert!(output.stderr.starts_with("error[CR0022]: no Docker Engine is configured here\n"));
}

/// Runs `ls` against an address and returns the error in its JSON.
fn unreachable(fixture: &CliFixture, host: &str) -> (Output, String) {
    let creel = fixture.creel().env("DOCKER_HOST", host);
    let output = creel.run(["ls", "--json"]).expect_code(7);
    let json = output.json();
    assert_eq!(json["version"], 1);
    let shown = json["unreachable"].as_array().unwrap();
    assert_eq!((shown.len(), text(&shown[0], "provider")), (1, "docker"), "{output}");
    assert_eq!(keys(&shown[0]), ["error", "provider"]);
    let error = text(&shown[0], "error").to_owned();
    (output, error)
}

#[test]
fn an_unresponsive_engine_is_named_and_the_rest_is_still_listed() {
    let fixture = CliFixture::new();
    let _hold = fixture.hold("--directory");
    let socket = fixture.path("dead.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let (output, error) = unreachable(&fixture, &format!("unix://{}", socket.display()));
    assert!(error.contains("refused"), "{error}");
    assert_eq!(output.json()["resources"].as_array().unwrap().len(), 1);
    assert!(output.stderr.contains("error[CR0020]"), "{output}");
    assert!(output.stderr.contains("\n\nhint: creel doctor"), "{output}");

    let (_, error) = unreachable(&fixture, "unix:///nowhere/docker.sock");
    assert!(error.contains("/nowhere/docker.sock"), "{error}");
    let (_, error) = unreachable(&fixture, "tcp://127.0.0.1:1");
    assert!(error.contains("127.0.0.1:1"), "{error}");
}

#[test]
fn a_socket_that_this_user_may_not_use_is_denied_and_not_absent() {
    let fixture = CliFixture::new();
    let home = fixture.path("nobody");
    fs::create_dir(&home).unwrap();
    for path in [fixture.path(""), home.clone()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let socket = fixture.path("forbidden.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    // A copy, because the user `nobody` may not enter the parents of the build directory.
    let binary = fixture.path("creel");
    fs::copy(BINARY, &binary).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
        .arg(&binary)
        .args(["ls", "--json"])
        .env_clear()
        .env("CREEL_HOME", &home)
        .env("DOCKER_HOST", format!("unix://{}", socket.display()))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(stderr.starts_with("error[CR0021]") && stderr.contains("no permission"), "{stderr}");
    assert!(stderr.contains("\n\nhint: creel explain CR0021"), "{stderr}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["unreachable"][0]["provider"], "docker");
}
