//! Edge cases of the toolbox that the SDKs do not cover.

use serde_json::{Value, json};

use crate::fixture::ServerFixture;

#[test]
fn a_command_that_reads_its_input_consumes_the_rest_of_the_script() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let (code, output) = fixture.run(&id, "echo first\ncat >/dev/null\necho never");
    assert_eq!((code, output.as_str()), (0, "first\n"));
}

#[test]
fn a_timeout_kills_the_whole_group() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let request = json!({ "command": "sleep 4242 & sleep 4243; echo never", "timeout": 1 });
    let refused =
        fixture.send("POST", &format!("toolbox/{id}/process/execute"), &request).expect(408);
    assert_eq!(refused["code"], "PROCESS_EXECUTION_TIMEOUT");
    let root = fixture.sandboxes();
    let ended = creel_testkit::wait::eventually(crate::fixture::PATIENCE, || {
        crate::leftovers::processes_below(&root).iter().all(|line| !line.contains("sleep"))
    });
    assert!(ended, "{:?}", crate::leftovers::processes_below(&root));
}

#[test]
fn a_command_can_be_interrupted() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let (code, output) = fixture.run(&id, "sh -c 'kill -INT $$; echo survived'");
    assert_eq!((code, output.as_str()), (130, ""));
}

#[test]
fn terminals_are_validated_and_end_with_their_sandbox() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let at = |path: &str| format!("toolbox/{id}/process/pty{path}");
    for wrong in [json!({}), json!({ "id": "t", "cols": 0 }), json!({ "id": "t", "rows": 1001 })] {
        fixture.send("POST", &at(""), &wrong).expect(400);
    }
    let lazy = json!({ "id": "lazy", "lazyStart": true, "cols": 90 });
    let created = fixture.send("POST", &at(""), &lazy).expect(201);
    assert_eq!(created["sessionId"], "lazy");
    let shown = fixture.get(&at("/lazy")).expect(200);
    assert_eq!((&shown["active"], &shown["cols"]), (&json!(false), &json!(90)));
    fixture.send("POST", &at(""), &json!({ "id": "now" })).expect(201);
    assert_eq!(fixture.get(&at("/now")).expect(200)["active"], true);
    fixture.send("POST", &at("/now/resize"), &json!({ "cols": 0, "rows": 5 })).expect(400);
    fixture.send("POST", &at("/none/resize"), &json!({ "cols": 5, "rows": 5 })).expect(410);
    fixture.get(&at("/create-connect?id=t")).expect(400);
    fixture.send("DELETE", &at("/lazy"), &Value::Null).expect(200);
    fixture.send("DELETE", &at("/lazy"), &Value::Null).expect(404);

    fixture.post(&format!("sandbox/{id}/stop")).expect(200);
    fixture.await_state(&id, "stopped");
    assert_eq!(crate::leftovers::processes_below(&fixture.sandboxes()), Vec::<String>::new());
    fixture.post(&format!("sandbox/{id}/start")).expect(200);
    fixture.await_state(&id, "started");
    assert_eq!(fixture.get(&at("")).expect(200)["sessions"], json!([]));
}

#[test]
fn a_sandbox_that_does_not_run_refuses() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    fixture.post(&format!("sandbox/{id}/stop")).expect(200);
    fixture.await_state(&id, "stopped");
    let request = json!({ "command": "true" });
    fixture.send("POST", &format!("toolbox/{id}/process/execute"), &request).expect(400);
    fixture.send("POST", "toolbox/unknown/process/execute", &request).expect(404);
}

#[test]
fn a_session_survives_its_commands() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let at = |path: &str| format!("toolbox/{id}/process/session{path}");
    fixture.send("POST", &at(""), &json!({ "sessionId": "s" })).expect(201);
    fixture.send("POST", &at(""), &json!({ "sessionId": "s" })).expect(409);
    let exec = |command: &str| {
        fixture.send("POST", &at("/s/exec"), &json!({ "command": command })).expect(200)
    };
    assert_eq!(exec("exec >/dev/null")["exitCode"], 0);
    assert_eq!(exec("cat <<END\nhere\nEND\nfalse")["exitCode"], 1);
    let ended = exec("exit 5");
    assert_eq!(ended["exitCode"], 5);
    fixture.send("POST", &at("/s/exec"), &json!({ "command": "true" })).expect(410);
    let missing = fixture.get(&at("/s/command/none/logs"));
    assert_eq!(missing.status, 404);
    let deleted = fixture.send("DELETE", &at("/s"), &Value::Null);
    assert_eq!(deleted.status, 204);
}

#[test]
fn paths_stay_below_the_root() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let missing = fixture.get(&format!("toolbox/{id}/files/download?path=/../../etc/passwd"));
    assert_eq!(missing.status, 404);
    let home = fixture.get(&format!("toolbox/{id}/work-dir")).expect(200);
    let home = home["dir"].as_str().expect("it has a home").to_owned();
    fixture.run(&id, "echo inside >note");
    for path in [format!("{home}/note"), "/home/daytona/note".to_owned(), "note".to_owned()] {
        let response = fixture.get(&format!("toolbox/{id}/files/download?path={path}"));
        assert_eq!((response.status, response.body.as_slice()), (200, &b"inside\n"[..]), "{path}");
    }
}

#[test]
fn files_are_transferred_and_errors_are_reported() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let at = |path: &str| format!("toolbox/{id}/files{path}");
    let created = fixture.send("POST", &at("/folder?path=/tmp/d&mode=700"), &Value::Null);
    assert_eq!(created.status, 201);
    let info = fixture.get(&at("/info?path=/tmp/d")).expect(200);
    assert_eq!((&info["isDir"], &info["permissions"]), (&json!(true), &json!("0700")));
    fixture.send("DELETE", &at("?path=/tmp/d"), &Value::Null).expect(400);
    let gone = fixture.send("DELETE", &at("?path=/tmp/d&recursive=true"), &Value::Null);
    assert_eq!(gone.status, 204);
    let missing = fixture.get(&at("/info?path=/tmp/d")).expect(404);
    assert_eq!(missing["code"], "FILE_NOT_FOUND");
    fixture.get(&at("/info")).expect(400);
    let several = fixture.send("POST", &at("/bulk-download"), &json!({ "paths": ["/none"] }));
    assert!(several.headers["content-type"].starts_with("multipart/form-data; boundary="));
    assert!(String::from_utf8_lossy(&several.body).contains("name=\"error\"; filename=\"/none\""));
}

#[test]
fn a_list_is_as_deep_as_requested() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    fixture.run(&id, "mkdir -p a/b/c && touch a/b/c/file a/top && ln -s / a/up");
    let paths = |query: &str| -> Vec<String> {
        let entries = fixture.get(&format!("toolbox/{id}/files?path=a{query}")).expect(200);
        let entries = entries.as_array().expect("it is a list").clone();
        entries.iter().filter_map(|entry| entry["path"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(paths(""), ["a/b", "a/top", "a/up"]);
    assert_eq!(paths("&depth=2"), ["a/b", "a/b/c", "a/top", "a/up"]);
    assert_eq!(paths("&depth=9"), ["a/b", "a/b/c", "a/b/c/file", "a/top", "a/up"]);
    fixture.get(&format!("toolbox/{id}/files?path=a&depth=0")).expect(400);
}

#[test]
fn searches_stay_below_the_root_and_report_errors() {
    let fixture = ServerFixture::process();
    let id = fixture.create(&json!({}));
    let at = |path: &str| format!("toolbox/{id}{path}");
    let outside = fixture.get(&at("/files/find?path=/../../etc&pattern=root")).expect(200);
    assert_eq!(outside, json!([]));
    for wrong in ["/files/find?path=/tmp", "/files/search?path=/tmp", "/files/search?pattern=x"] {
        fixture.get(&at(wrong)).expect(400);
    }
    let wrong = fixture.get(&at("/files/search?path=/tmp&pattern=%5Ba")).expect(400);
    assert_eq!(wrong["message"], "invalid glob pattern: [a");
    fixture.send("POST", &at("/files/replace"), &json!({ "files": [] })).expect(400);
    fixture.send("POST", &at("/files/move?source=/tmp/x"), &Value::Null).expect(400);
    fixture.send("POST", &at("/files/permissions?path=/tmp&mode=rwx"), &Value::Null).expect(400);
    let metrics = fixture.get(&at("/system/metrics")).expect(200);
    assert!(metrics["memTotal"].as_u64() > metrics["memUsed"].as_u64(), "{metrics}");
}
