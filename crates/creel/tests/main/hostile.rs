//! An engine that means harm: endless answers, and names that forge rows or steer a terminal.

use std::fs;
use std::time::Duration;

use creel_testkit::creel::Output;
use creel_testkit::fake_engine::{
    FakeEngine, Reply, container_detail, container_id, container_row,
};
use creel_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::support::Home;

/// How much memory a command may take at its peak, whatever an engine sends.
const MOST: u64 = 200 << 20;

/// Runs a command and returns its output and its peak memory.
fn measured(home: &Home, arguments: &[&str]) -> (Output, u64) {
    let running = home.creel.spawn(arguments);
    let status = format!("/proc/{}/status", running.pid());
    let mut peak = 0;
    // The mark only rises, so the last check before the end has nearly all of it.
    let has_ended = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.map(|line| line.trim().trim_end_matches(" kB").parse::<u64>());
        peak = kilobytes.map_or(peak, |mark| peak.max(mark.unwrap() << 10));
        line.is_none()
    };
    // Whether it ended in time is for the caller to see.
    let _ = eventually(Duration::from_secs(100), has_ended);
    (running.wait(), peak)
}

/// Checks that a command gives an endless answer up, names the bound, and stays small.
#[track_caller]
fn assert_bounded(engine: &FakeEngine, arguments: &[&str]) {
    let home = Home::on(&engine.engine());
    let (output, peak) = measured(&home, arguments);
    assert_ne!(output.code(), Some(0), "{output}");
    let said = format!("{}{}", output.stdout, output.stderr);
    assert!(said.contains("sent more than"), "{output}");
    assert!(peak < MOST, "{} MB at its peak\n{output}", peak >> 20);
}

#[test]
fn an_endless_list_is_given_up_and_takes_little_memory() {
    let rows = [
        // One row that never ends, endless small ones, and endless ones with long names.
        (r#"[{"Id":""#.to_owned(), "x".to_owned()),
        ("[".to_owned(), format!("{},", json!({ "Id": "a", "Names": [] }))),
        ("[".to_owned(), format!("{},", json!({ "Id": "a", "Names": ["n".repeat(100_000)] }))),
        (
            "[".to_owned(),
            format!("{},", json!({ "Id": "a", "Labels": { "l": "v".repeat(900_000) } })),
        ),
    ];
    for (first, again) in rows {
        let engine = FakeEngine::start().unwrap();
        engine.route("GET", r"/containers/json(\?|$)", [Reply::Endless(200, first, again)]);
        assert_bounded(&engine, &["ls"]);
    }
}

#[test]
fn every_kind_of_list_has_a_bound() {
    for (path, first, row) in [
        (r"/networks(\?|$)", "[", json!({ "Id": "a", "Name": "n".repeat(9_000) })),
        (r"/images/json(\?|$)", "[", json!({ "Id": "sha256:a", "RepoTags": ["n".repeat(9_000)] })),
        (r"/volumes(\?|$)", r#"{"Volumes":["#, json!({ "Name": "n".repeat(9_000) })),
    ] {
        let engine = FakeEngine::start().unwrap();
        let endless = Reply::Endless(200, first.to_owned(), format!("{row},"));
        engine.route("GET", path, [endless]);
        assert_bounded(&engine, &["ls"]);
    }
}

#[test]
fn an_endless_answer_about_one_object_or_a_refusal_is_given_up() {
    let row = container_row(0, "exited");
    let sweep = ["sweep", "--label", "dev.example.suite=fake", "--apply", "--retry-deadline", "1s"];
    let details = format!(r"/containers/{}/json", container_id(0));
    let removal = format!(r"/containers/{}(\?|$)", container_id(0));
    let there = Reply::Json(200, container_detail(0, "exited"));
    for (method, path, status) in
        [("GET", &details, 200), ("GET", &details, 500), ("DELETE", &removal, 500)]
    {
        let engine = FakeEngine::start().unwrap();
        engine.list_containers(vec![row.clone()]);
        engine.route("GET", &details, [there.clone()]);
        let endless = Reply::Endless(status, r#"{"message":""#.to_owned(), "x".to_owned());
        engine.route(method, path, [endless]);
        assert_bounded(&engine, &sweep);
    }
}

#[test]
fn an_endless_introduction_is_given_up() {
    for path in ["/_ping$", "/version$", "/info$"] {
        let engine = FakeEngine::start().unwrap();
        engine.route("GET", path, [Reply::Endless(200, "\"".to_owned(), "x".to_owned())]);
        let home = Home::on(&engine.engine());
        let (output, peak) = measured(&home, &["doctor"]);
        assert!(peak < MOST, "{} MB at its peak\n{output}", peak >> 20);
    }
}

#[test]
fn an_endless_answer_to_a_create_is_given_up() {
    for (flags, path) in [
        (&["--container", "creel-test"][..], r"/containers/create(\?|$)"),
        (&["--network"], r"/networks/create(\?|$)"),
        (&["--volume"], r"/volumes/create(\?|$)"),
    ] {
        for status in [201, 500] {
            let engine = FakeEngine::start().unwrap();
            let endless = Reply::Endless(status, r#"{"Id":""#.to_owned(), "x".to_owned());
            engine.route("POST", path, [endless]);
            let hold = ["dev", "hold", "--no-watchdog", "--for", "0s"];
            assert_bounded(&engine, &[&hold[..], flags].concat());
        }
    }
}

/// Writes a workflow with a sandbox of an image.
fn workflow_in_a_container(home: &Home) -> String {
    let text = "name = \"hostile\"\n\
                [sandbox]\nprovider = \"docker\"\nimage = \"app:1\"\nnetwork = \"none\"\n\
                [runtime]\nkind = \"command\"\ncommand = [\"true\"]\n\
                [task]\nprompt = \"go\"\n[limits]\nwall = \"60s\"\n";
    let path = home.path("workflow.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn an_endless_line_of_a_pull_is_given_up() {
    for first in [r#"{"status":""#, ""] {
        let engine = FakeEngine::start().unwrap();
        engine.route("POST", r"/containers/create(\?|$)", [no_such_image()]);
        let endless = Reply::Endless(200, first.to_owned(), "x".to_owned());
        engine.route("POST", r"/images/create(\?|$)", [endless]);
        let home = Home::on(&engine.engine());
        let path = workflow_in_a_container(&home);
        let (output, peak) = measured(&home, &["run", &path]);
        assert_ne!(output.code(), Some(0), "{output}");
        assert!(engine.requests().iter().any(|one| one.contains("/images/create")), "{output}");
        let said = format!("{}{}", output.stdout, output.stderr);
        assert!(said.contains("sent more than"), "{output}");
        assert!(peak < MOST, "{} MB at its peak\n{output}", peak >> 20);
    }
}

fn no_such_image() -> Reply {
    Reply::error(404, "No such image: app:1")
}

/// Scripts a container that can be created, started, inspected and removed.
fn route_sandbox(engine: &FakeEngine) {
    let id = container_id(0);
    let image = json!({ "Id": format!("sha256:{:064x}", 1), "RepoTags": ["app:1"] });
    engine.route("GET", "/images/app.*/json", [Reply::Json(200, image)]);
    engine.route(
        "POST",
        r"/containers/create(\?|$)",
        [Reply::Json(201, json!({ "Id": id, "Warnings": [] }))],
    );
    engine.route("PUT", &format!("/containers/{id}/archive"), [Reply::Empty(200)]);
    engine.route("POST", &format!("/containers/{id}/start"), [Reply::Empty(204)]);
    engine.route("POST", &format!("/containers/{id}/(stop|kill)"), [Reply::Empty(204)]);
    engine.route("POST", &format!("/containers/{id}/exec"), [Reply::Json(201, json!({"Id": "e"}))]);
    let there = Reply::Json(200, container_detail(0, "running"));
    engine.route("GET", &format!("/containers/{id}/json"), [there]);
    engine.route("GET", "/exec/e/json", [Reply::Json(200, json!({ "ExitCode": 0 }))]);
    engine.route("DELETE", &format!("/containers/{id}"), [Reply::Empty(204)]);
}

#[test]
fn an_endless_stream_of_a_command_is_given_up() {
    // A frame of standard output, or of standard error, that says it has two gigabytes.
    for (stream, again) in [("\u{1}", "x"), ("\u{2}", "x\n")] {
        let engine = FakeEngine::start().unwrap();
        route_sandbox(&engine);
        let first = format!("{stream}\0\0\0\u{7f}\u{7f}\u{7f}\u{7f}");
        let endless = Reply::Endless(101, first, again.to_owned());
        engine.route("POST", "/exec/e/start", [endless]);
        let home = Home::on(&engine.engine());
        home.configure("[retry]\nretries = 1\ninitial = \"50ms\"\ndeadline = \"5s\"\n");
        let path = workflow_in_a_container(&home);
        let (output, peak) = measured(&home, &["run", "--json", &path]);
        assert!(engine.requests().iter().any(|one| one.contains("/exec/e/start")), "{output}");
        assert!(peak < MOST, "{} MB at its peak\n{output}", peak >> 20);
        let said = format!("{}{}", output.stdout, output.stderr);
        assert_ne!(output.code(), Some(0), "{output}");
        assert!(said.contains("sent more than"), "{output}");
    }
}

/// Sends a request through a guard with curl; returns its output and the peak memory of the guard.
fn through_a_guard(engine: &FakeEngine, curl: &str) -> (Output, u64) {
    let home = Home::on(&engine.engine());
    home.configure("[ledger]\nintent_window = \"0s\"\n");
    let script = format!("curl -sS --unix-socket \"${{DOCKER_HOST#unix://}}\" {curl}");
    measured(&home, &["guard", "--", "sh", "-c", &script])
}

#[test]
fn an_endless_answer_to_a_create_through_a_guard_is_given_up() {
    for (path, key) in [("networks", "Id"), ("volumes", "Name"), ("containers", "Id")] {
        let engine = FakeEngine::start().unwrap();
        let first = format!(r#"{{"{key}":""#);
        let endless = Reply::Endless(201, first, "x".to_owned());
        engine.route("POST", &format!(r"/{path}/create(\?|$)"), [endless]);
        let body = r#"-H 'Content-Type: application/json' -d '{"Name":"n","Image":"app:1"}'"#;
        let request = format!("{body} http://engine/v1.41/{path}/create");
        let (output, peak) = through_a_guard(&engine, &request);
        assert!(output.stdout.contains("sent more than"), "{output}");
        assert!(peak < MOST, "{} MB at its peak\n{output}", peak >> 20);
    }
}

#[test]
fn an_endless_body_passes_a_guard_without_its_memory() {
    let line = || Reply::Endless(200, r#"{"stream":""#.to_owned(), "x".to_owned());
    let lines = || Reply::Endless(200, String::new(), "{\"stream\":\"x\"}\n".to_owned());
    // What is only copied, and what is read while it passes.
    for (method, path, endless) in [
        ("GET", "containers/json", line()),
        ("POST", "build?t=app:1", line()),
        ("POST", "build?t=app:1", lines()),
        ("POST", "build?t=app:1", Reply::EndlessHead),
        ("POST", "images/create?fromImage=app&tag=1", line()),
    ] {
        let engine = FakeEngine::start().unwrap();
        let route = path.split('?').next().unwrap_or_default();
        engine.route(method, &format!(r"/{route}(\?|$)"), [endless]);
        let request = format!("--max-time 2 -X {method} 'http://engine/v1.41/{path}' | wc -c >&2");
        let (output, peak) = through_a_guard(&engine, &request);
        assert!(peak < MOST, "{method} {path}: {} MB at its peak\n{output}", peak >> 20);
    }
}

#[test]
fn a_list_that_cannot_be_read_is_no_answer() {
    let engine = FakeEngine::start().unwrap();
    engine.route("GET", r"/containers/json(\?|$)", [Reply::Json(200, json!("no list"))]);
    let home = Home::on(&engine.engine());
    for command in [&["ls"][..], &["sweep", "--preset", "stopped", "--apply"]] {
        let output = home.creel.run(command).expect_code(7);
        assert!(output.stderr.contains("docker"), "{output}");
    }
}

/// Names that forge a row, clear the screen, and turn a line around.
const NAMES: [&str; 3] =
    ["web\ncontainer  0123  forged  running", "\u{1b}[2J\u{1b}[1;1Hgone", "exe.\u{202e}fdp"];

fn named(number: usize, name: &str) -> Value {
    let mut row = container_row(number, "exited");
    row["Names"] = json!([format!("/{name}")]);
    row["Labels"]["com.docker.compose.project"] = json!(name);
    row
}

#[test]
fn foreign_names_make_one_row_each_and_json_has_them_exactly() {
    let engine = FakeEngine::start().unwrap();
    engine.list_containers(NAMES.iter().enumerate().map(|(at, name)| named(at, name)).collect());
    let volumes: Vec<Value> = NAMES.iter().map(|name| json!({ "Name": name })).collect();
    engine.route("GET", r"/volumes(\?|$)", [Reply::Json(200, json!({ "Volumes": volumes }))]);
    let images = NAMES.iter().enumerate().map(|(at, name)| {
        json!({ "Id": format!("sha256:{:064x}", at + 9), "RepoTags": [format!("app:{at}")], "Labels": { "l": name } })
    });
    let images: Value = images.collect();
    engine.route("GET", r"/images/json(\?|$)", [Reply::Json(200, images)]);
    let home = Home::on(&engine.engine());
    let listed = home.creel.run(["ls"]).expect_code(0);
    let rows = 1 + 3 * NAMES.len();
    assert_eq!(listed.stdout.lines().count(), rows, "{listed}");
    for text in [&listed.stdout, &listed.stderr] {
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{listed}");
    }
    assert!(listed.stdout.contains(r"web\ncontainer"), "{listed}");
    let exact = home.creel.run(["ls", "--json"]).expect_code(0).json();
    let exact: Vec<&str> = exact["resources"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    for name in NAMES {
        assert_eq!(exact.iter().filter(|seen| **seen == name).count(), 2, "{name:?} in {exact:?}");
    }
}

#[test]
fn a_plan_and_a_refusal_show_foreign_names_in_one_line() {
    let engine = FakeEngine::start().unwrap();
    engine.list_containers(NAMES.iter().enumerate().map(|(at, name)| named(at, name)).collect());
    let home = Home::on(&engine.engine());
    let planned = home.creel.run(["sweep", "--label", "dev.example.suite=fake"]).expect_code(0);
    let said = format!("{}{}", planned.stdout, planned.stderr);
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{planned}");
    assert!(!said.lines().any(|line| line.starts_with("container  0123")), "{planned}");
}

#[test]
fn names_of_our_own_are_one_visible_line_of_limited_length() {
    let home = Home::without_engine();
    let rest = "[runtime]\nkind = \"command\"\ncommand = [\"sh\"]\n[task]\nprompt = \"p\"\n";
    let step =
        |name: &str| format!("name = \"n\"\n{rest}[[setup]]\nname = {name}\nrun = \"true\"\n");
    let long = format!("\"{}\"", "x".repeat(129));
    for name in [r#""a\nb""#, r#""\u001b[2J""#, r#""a\u202eb""#, r#""a\u200bb""#, &long] {
        for text in [format!("name = {name}\n{rest}"), step(name)] {
            let path = home.path("workflow.toml");
            fs::write(&path, text).unwrap();
            let output = home.creel.run(["run".as_ref(), "--check".as_ref(), path.as_os_str()]);
            let output = output.expect_code(2);
            let sentences = ["signs that cannot be seen", "more than 128 characters"];
            assert!(sentences.iter().any(|one| output.stderr.contains(one)), "{output}");
        }
    }
}
