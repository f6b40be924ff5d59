//! `creel ls`: the shape, the filters, and worlds that do not answer.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use creel_testkit::creel::Output;
use creel_testkit::docker::ContainerSpec;
use serde_json::Value;

use super::bench::{BINARY, Bench, keys, text};

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

/// Returns the listed names of a test with its prefix cut off, sorted.
fn listed(bench: &Bench, flags: &str) -> Vec<String> {
    let output = bench.run(&format!("ls --json {flags}")).expect_code(0);
    let json = output.json();
    let names = json["resources"].as_array().unwrap().iter().map(|row| text(row, "name"));
    let mine = names.filter_map(|name| name.strip_prefix(&bench.name));
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
fn json_has_the_documented_shape_in_one_line() {
    let bench = Bench::new();
    let id = bench.running("-web");
    let output = bench.run("ls --json").expect_code(0);
    assert_eq!(output.stdout.lines().count(), 1);
    let json = output.json();
    assert_eq!(keys(&json), ["resources", "unfinished", "unreachable", "version", "waiting"]);
    assert_eq!((&json["version"], &json["unreachable"]), (&1.into(), &Value::Array(Vec::new())));
    for resource in json["resources"].as_array().unwrap() {
        assert_eq!(keys(resource), RESOURCE_KEYS);
    }
    let web = row(&output, &bench.named("-web"));
    let told = ["provider", "kind", "id", "state"].map(|key| text(&web, key));
    assert_eq!(told, ["docker", "container", &id, "running"]);
    assert_eq!(web["labels"][bench.key()], bench.name.as_str());
    assert_eq!(web["protected"], false);
    assert!(web["owner"].is_null() && web["run"].is_null(), "{web}");
    assert!(text(&web, "created_at").ends_with('Z'), "{web}");
}

#[test]
fn what_a_live_process_holds_is_listed_with_its_owner() {
    let bench = Bench::new();
    let hold = bench.hold("--container IMAGE --directory");
    let output = bench.run("ls --json --owned").expect_code(0);
    assert_eq!(output.json()["resources"].as_array().unwrap().len(), 2);
    for kind in ["container", "directory"] {
        let held = row(&output, &hold.name(kind));
        let owner = &held["owner"];
        assert_eq!(keys(owner), ["boot", "command", "host", "pid", "started_at", "state"]);
        assert_eq!(owner["pid"], hold.answer["pid"]);
        assert_eq!([text(owner, "command"), text(owner, "state")], ["creel dev hold", "alive"]);
        assert_eq!(held["run"], hold.answer["run"]);
        for key in ["host", "boot", "started_at"] {
            assert!(!text(owner, key).is_empty(), "{key} in {owner}");
        }
    }
    assert_eq!(hold.end().code(), Some(130));
    let output = bench.run("ls --json --owned").expect_code(0);
    assert_eq!(output.json()["resources"], Value::Array(Vec::new()));
}

#[test]
fn each_filter_shows_what_it_says() {
    let bench = Bench::new();
    let docker = bench.docker();
    bench.running("-run");
    bench.exited("-out");
    bench.created("-new");
    bench.network("-net");
    bench.volume("-vol");
    bench.image("-img");
    let project = BTreeMap::from([("com.docker.compose.project".to_owned(), bench.name.clone())]);
    docker.create(&ContainerSpec::exiting(&bench.named("-compose")).labels(&project)).unwrap();
    let (name, label, key) = (&bench.name, bench.label(), bench.key());

    assert_eq!(
        listed(&bench, &format!("--label {label} --kind container")),
        ["-new", "-out", "-run"]
    );
    assert_eq!(
        listed(&bench, &format!("--label {key} --kind network --kind volume")),
        ["-net", "-vol"]
    );
    assert_eq!(
        listed(&bench, &format!("--label {label} --state exited --state created")),
        ["-new", "-out"]
    );
    assert_eq!(listed(&bench, &format!("--name {name}-?e?")), ["-net", "-new"]);
    assert_eq!(listed(&bench, &format!("--name {name}-img:*")), ["-img:latest"]);
    assert_eq!(listed(&bench, &format!("--project {name}")), ["-compose"]);
    assert_eq!(listed(&bench, &format!("--label {label} --provider process")), [""; 0]);
    assert_eq!(listed(&bench, &format!("--label {label} --older-than 1h")), [""; 0]);
    assert_eq!(listed(&bench, &format!("--label {label} --label absent")), [""; 0]);
    assert_eq!(listed(&bench, "--owned"), [""; 0]);
    assert_eq!(listed(&bench, &format!("--label {label} --older-than 0s")).len(), 6);
}

#[test]
fn without_docker_it_works_and_says_nothing_of_it() {
    let bench = Bench::new();
    let creel = bench.creel_without_docker();
    // The test's engine is not at one of the usual places, so none is configured.
    let output = creel.run(["ls", "--json"]).expect_code(0);
    assert_eq!(output.json()["unreachable"], Value::Array(Vec::new()));
    assert_eq!(output.stderr, "");
    let output = creel.run(["ls", "--provider", "docker"]).expect_code(7);
    assert!(output.stderr.starts_with("error[CR0022]: no Docker Engine is configured here\n"));
}

/// Runs `ls` against an address and returns the error in its JSON.
fn unreachable(bench: &Bench, host: &str) -> (Output, String) {
    let creel = bench.creel().env("DOCKER_HOST", host);
    let output = creel.run(["ls", "--json"]).expect_code(7);
    let json = output.json();
    assert_eq!(json["version"], 1);
    let told = json["unreachable"].as_array().unwrap();
    assert_eq!((told.len(), text(&told[0], "provider")), (1, "docker"), "{output}");
    assert_eq!(keys(&told[0]), ["error", "provider"]);
    let error = text(&told[0], "error").to_owned();
    (output, error)
}

#[test]
fn an_engine_that_does_not_answer_is_named_and_the_rest_is_still_listed() {
    let bench = Bench::new();
    let _hold = bench.hold("--directory");
    let socket = bench.path("dead.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let (output, error) = unreachable(&bench, &format!("unix://{}", socket.display()));
    assert!(error.contains("refused"), "{error}");
    assert_eq!(output.json()["resources"].as_array().unwrap().len(), 1);
    assert!(output.stderr.contains("error[CR0020]"), "{output}");
    assert!(output.stderr.contains("\n\nhint: creel doctor"), "{output}");

    let (_, error) = unreachable(&bench, "unix:///nowhere/docker.sock");
    assert!(error.contains("/nowhere/docker.sock"), "{error}");
    let (_, error) = unreachable(&bench, "tcp://127.0.0.1:1");
    assert!(error.contains("127.0.0.1:1"), "{error}");
}

#[test]
fn a_socket_that_this_user_may_not_use_is_denied_and_not_absent() {
    let bench = Bench::new();
    let home = bench.path("nobody");
    fs::create_dir(&home).unwrap();
    for path in [bench.path(""), home.clone()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let socket = bench.path("forbidden.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    // A copy, because nobody may not enter the directories above the build's.
    let binary = bench.path("creel");
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
