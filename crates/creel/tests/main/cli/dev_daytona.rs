//! `creel dev daytona`: it serves, and leaves nothing behind however it ends.

use std::time::Duration;

use creel_testkit::creel::{Creel, Running};
use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::inventory::Kind;
use creel_testkit::wait::eventually;
use serde_json::json;

use crate::support::{Home, PATIENCE, assert_killed};

use super::cloud::{ask, serve};

/// A daemon that a test can find: its own session, no environment, no parent.
const DAEMON: &str = "(env -i MARK=6161 setsid sleep 6161 </dev/null >/dev/null 2>&1 &)";

/// Starts a server, and a sandbox with a daemon that tries to escape.
fn start(creel: &Creel, flags: &[&str]) -> Running {
    let (running, ready) = serve(creel, &[&["--fast"], flags].concat());
    let (url, key) = (ready["url"].as_str().unwrap(), ready["api_key"].as_str().unwrap());
    assert!(ready["admin_url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    assert_eq!(running.stdout().lines().count(), 1, "one line and no more");
    let (status, made) = ask("POST", &format!("{url}/sandbox"), key, &json!({}));
    assert_eq!((status, &made["state"]), (200, &json!("started")));
    let execute = url.replace("/api", "/toolbox/") + made["id"].as_str().unwrap();
    let (status, ran) =
        ask("POST", &format!("{execute}/process/execute"), key, &json!({ "command": DAEMON }));
    assert_eq!((status, &ran["exitCode"]), (200, &json!(0)));
    running
}

/// Returns whether a process runs below the home's sandboxes.
fn any_process(home: &Home) -> bool {
    let root = home.creel.state().join("sandboxes");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok())
        .any(|cwd| cwd.starts_with(&root))
}

fn assert_nothing_left(home: &Home) {
    home.await_quiet();
    assert!(!any_process(home));
    let left = (home.on_machine(), home.open_records());
    assert!(left.0.is_empty() && left.1.is_empty(), "{left:#?}");
}

#[test]
fn a_signal_ends_the_server_and_all_its_sandboxes() {
    let home = Home::on(&Engine::from_env());
    for signal in ["TERM", "INT", "HUP"] {
        let running = start(&home.creel, &[]);
        assert!(eventually(PATIENCE, || any_process(&home)));
        running.signal(signal);
        running.wait().expect_code(0);
        assert_nothing_left(&home);
    }
}

#[test]
fn the_watchdog_of_a_killed_server_cleans_up() {
    let home = Home::on(&Engine::from_env());
    let running = start(&home.creel, &[]);
    assert!(eventually(PATIENCE, || any_process(&home)));
    assert_killed(&running.kill());
    assert_nothing_left(&home);
}

/// Returns how many containers of this home's ledger exist on the engine.
fn containers(home: &Home, engine: &Engine) -> usize {
    home.on_engine(engine).of_kind(Kind::Container).len()
}

#[test]
fn containers_as_sandboxes_end_with_the_server_however_it_ends() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    let flags = ["--docker", "--image", image::REFERENCE];
    for signal in ["TERM", "INT"] {
        let running = start(&home.creel, &flags);
        assert_eq!(containers(&home, &engine), 1);
        running.signal(signal);
        running.wait().expect_code(0);
        assert_nothing_left(&home);
        assert_eq!(containers(&home, &engine), 0);
    }
    let running = start(&home.creel, &flags);
    assert_eq!(containers(&home, &engine), 1);
    assert_killed(&running.kill());
    assert_nothing_left(&home);
    assert_eq!(containers(&home, &engine), 0);
}

#[test]
fn containers_require_an_engine_that_responds() {
    let home = Home::on(&Engine::from_env());
    let creel = home.creel.clone().deadline(Duration::from_secs(20));
    let nowhere = creel.clone().env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    let output = nowhere.run(["dev", "daytona", "--docker"]).expect_code(7);
    assert!(output.stderr.contains("/nowhere/docker.sock"), "{output}");
    assert_eq!(output.stdout, "", "it was never ready");
    let none = creel.env_remove("DOCKER_HOST");
    none.run(["dev", "daytona", "--docker"]).expect_code(7);
    assert!(home.processes().is_empty());
}

#[test]
fn wrong_settings_are_refused_before_anything_starts() {
    let home = Home::on(&Engine::from_env());
    let creel = home.creel.clone().deadline(Duration::from_secs(20));
    for wrong in [
        &["--listen", "0.0.0.0:0"][..],
        &["--rate-limit", "nonsense"],
        &["--scenario", "/no/such/file"],
        &["--image", "debian:12"],
    ] {
        creel.run([&["dev", "daytona"], wrong].concat()).expect_code(2);
    }
    assert!(home.processes().is_empty());
}
