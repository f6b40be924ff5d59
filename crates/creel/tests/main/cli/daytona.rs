//! `creel dev daytona`: it serves, and however it ends it leaves nothing.

use std::time::Duration;

use creel_testkit::creel::Running;
use creel_testkit::engine::Engine;
use creel_testkit::http::send;
use creel_testkit::wait::{eventually, eventually_some};
use serde_json::{Value, json};

use crate::support::{Home, PATIENCE, assert_killed};

/// Starts a server and a sandbox with a daemon in it that tries to get away.
fn serve(home: &Home) -> Running {
    let running = home.creel.spawn(["dev", "daytona", "--fast", "--listen", "127.0.0.1:0"]);
    let told = eventually_some(PATIENCE, || serde_json::from_str(&running.stdout()).ok());
    let told: Value = told.unwrap_or_else(|| panic!("not ready: {}", running.stderr()));
    let (url, key) = (told["url"].as_str().unwrap(), told["api_key"].as_str().unwrap());
    assert!(told["admin_url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let (status, made) = send("POST", &format!("{url}/sandbox"), key, &json!({})).unwrap();
    assert_eq!((status, &made["state"]), (200, &json!("started")));
    let execute = url.replace("/api", "/toolbox/") + made["id"].as_str().unwrap();
    let daemon = "(env -i MARK=6161 setsid sleep 6161 </dev/null >/dev/null 2>&1 &)";
    let execute = format!("{execute}/process/execute");
    let (status, ran) = send("POST", &execute, key, &json!({ "command": daemon })).unwrap();
    assert_eq!((status, &ran["exitCode"]), (200, &json!(0)));
    running
}

/// Returns whether a process works below the home's sandboxes.
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
        let running = serve(&home);
        assert!(eventually(PATIENCE, || any_process(&home)));
        running.signal(signal);
        running.wait().expect_code(0);
        assert_nothing_left(&home);
    }
}

#[test]
fn a_killed_server_is_cleaned_up_after_by_its_watchdog() {
    let home = Home::on(&Engine::from_env());
    let running = serve(&home);
    assert!(eventually(PATIENCE, || any_process(&home)));
    assert_killed(&running.kill());
    assert_nothing_left(&home);
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
