//! Nothing is left behind, however the server or its sandboxes' programs end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use creel_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::client::{Request, send};
use crate::fixture::{HELPER, PATIENCE, ServerFixture};

/// A daemon that tries to escape: its own session, no environment, no parent.
const DAEMON: &str = "(env -i setsid sleep 3131 </dev/null >/dev/null 2>&1 &)";

/// Returns the command lines of processes whose working directory is below a directory.
pub(crate) fn processes_below(root: &Path) -> Vec<String> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let pids = creel_model::os::all_pids().expect("procfs can be read");
    let below = pids.into_iter().filter(|pid| {
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
        cwd.is_ok_and(|cwd| cwd.starts_with(&root))
    });
    below
        .filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .collect()
}

fn entries_of(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn deleting_a_sandbox_ends_its_daemons() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    assert_eq!(fixture.run(&id, DAEMON).0, 0);
    let root = fixture.sandboxes();
    let runs = || processes_below(&root).iter().any(|line| line.contains("sleep 3131"));
    assert!(eventually(PATIENCE, runs));
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    fixture.await_state(&id, "404");
    assert_eq!(processes_below(&root), Vec::<String>::new());
    assert_eq!(entries_of(&root), 0);
}

#[test]
fn a_stopped_server_leaves_nothing() {
    let mut fixture = ServerFixture::process();
    for _ in 0..3 {
        let id = fixture.create(&json!({}));
        fixture.run(&id, DAEMON);
        let session = json!({ "sessionId": "s" });
        fixture.send("POST", &format!("toolbox/{id}/process/session"), &session).expect(201);
        let request = json!({ "command": "sleep 3232", "runAsync": true });
        fixture.send("POST", &format!("toolbox/{id}/process/session/s/exec"), &request).expect(202);
    }
    let root = fixture.sandboxes();
    assert!(processes_below(&root).len() >= 9);
    fixture.stop();
    assert_eq!(processes_below(&root), Vec::<String>::new());
    assert_eq!(entries_of(&root), 0);
}

#[test]
fn a_killed_server_leaves_no_process() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let mut server = Command::new(HELPER)
        .arg("serve")
        .arg(home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the helper can be run");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("stdout is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("the server reports its address");
    let ready: Value = serde_json::from_str(&line).expect("the report is JSON");
    let url = ready["url"].as_str().expect("it has an address");
    let key = format!("Bearer {}", ready["api_key"].as_str().expect("it has a key"));
    let headers = [("Authorization", key.as_str())];
    let post = |url: String, body: Value| {
        let body = body.to_string().into_bytes();
        let request = Request { method: "POST", url: &url, headers: &headers, body: &body };
        send(&request).expect("the server answers").expect(200)
    };
    let created = post(format!("{url}/sandbox"), json!({}));
    let id = created["id"].as_str().expect("every sandbox has an id");
    let execute = format!("{}/toolbox/{id}/process/execute", url.trim_end_matches("/api"));
    post(execute, json!({ "command": DAEMON }));
    let root = home.path().join("sandboxes");
    let runs = || processes_below(&root).iter().any(|line| line.contains("sleep 3131"));
    assert!(eventually(PATIENCE, runs));
    server.kill().expect("it is ours");
    server.wait().expect("it is ours");
    let ended = eventually(PATIENCE, || processes_below(&root).is_empty());
    assert!(ended, "{:?}", processes_below(&root));
}
