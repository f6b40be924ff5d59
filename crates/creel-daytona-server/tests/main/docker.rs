//! Sandboxes that are containers of a real engine.

use creel_testkit::engine::Engine;
use serde_json::{Value, json};

use crate::fixture::ServerFixture;

/// Counts the containers that creel created, whatever their state.
fn containers(engine: &Engine, id: &str) -> usize {
    let output = std::process::Command::new("docker")
        .args(["--host", &engine.host(), "ps", "-aq", "--no-trunc"])
        .args(["--filter", "label=dev.creel.owner", "--filter", &format!("id={id}")])
        .output()
        .expect("the docker program is there");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

#[test]
fn files_are_transferred_to_and_from_a_container() {
    let fixture = ServerFixture::docker(&Engine::from_env());
    let id = fixture.create(&json!({}));
    let at = |path: &str| format!("toolbox/{id}/files{path}");
    let post = |path: &str| fixture.send("POST", &at(path), &Value::Null);
    fixture.run(&id, "mkdir -p /data/sea && printf 'one\\ntwo fish\\n' >/data/sea/a.txt");
    fixture.run(&id, "printf 'x\\0fish' >/data/binary; echo 'my fish' >'/data/my file.md'");
    let found = fixture.get(&at("/find?path=/data&pattern=fish")).expect(200);
    let expected = json!([
        { "file": "/data/my file.md", "line": 1, "content": "my fish" },
        { "file": "/data/sea/a.txt", "line": 2, "content": "two fish" },
    ]);
    assert_eq!(found, expected);
    assert_eq!(fixture.get(&at("/find?path=/none&pattern=fish")).expect(200), json!([]));
    let searched = fixture.get(&at("/search?path=data&pattern=**/*.txt")).expect(200);
    assert_eq!(searched["files"], json!(["data/sea/a.txt"]));
    let request =
        json!({ "files": ["/data/my file.md", "/none"], "pattern": "fish", "newValue": "c" });
    let replaced = fixture.send("POST", &at("/replace"), &request).expect(200);
    assert_eq!((&replaced[0]["success"], &replaced[1]["success"]), (&json!(true), &json!(false)));

    assert_eq!(post("/move?source=/data/my%20file.md&destination=/data/sea/b.md").status, 200);
    post("/move?source=/data/sea/b.md&destination=/data/sea/a.txt").expect(409);
    post("/move?source=/data/none&destination=/data/x").expect(404);
    assert_eq!(post("/permissions?path=/data/sea/b.md&mode=600&owner=7&group=8").status, 200);
    let info = fixture.get(&at("/info?path=/data/sea/b.md")).expect(200);
    assert_eq!((&info["permissions"], &info["owner"]), (&json!("0600"), &json!("7")));
    assert_eq!((&info["group"], &info["path"]), (&json!("8"), &json!("/data/sea/b.md")));
    let deep = fixture.get(&at("?path=/data&depth=2")).expect(200);
    let paths: Vec<&str> =
        deep.as_array().expect("it is a list").iter().filter_map(|e| e["path"].as_str()).collect();
    assert_eq!(paths, ["/data/binary", "/data/sea", "/data/sea/a.txt", "/data/sea/b.md"]);
    fixture.get(&at("?path=/none")).expect(404);
    let metrics = fixture.get(&format!("toolbox/{id}/system/metrics")).expect(200);
    assert!(metrics["diskTotal"].as_u64() > Some(0), "{metrics}");
}

#[test]
fn a_container_serves_as_a_sandbox() {
    let engine = Engine::from_env();
    let mut fixture = ServerFixture::docker(&engine);
    let id = fixture.create(&json!({ "env": { "GREETING": "hi" } }));
    let (code, output) = fixture.run(&id, "echo $GREETING; cat /proc/1/cmdline >/dev/null; exit 4");
    assert_eq!((code, output.as_str()), (4, "hi\n"));
    let container = fixture.run(&id, "hostname").1.trim().to_owned();
    assert_eq!(containers(&engine, &container), 1);

    let at = |path: &str| format!("toolbox/{id}{path}");
    let request = json!({ "command": "sleep 77", "timeout": 1 });
    fixture.send("POST", &at("/process/execute"), &request).expect(408);
    fixture.run(&id, "mkdir -p /data && echo text >/data/file");
    let file = fixture.get(&at("/files/download?path=/data/file"));
    assert_eq!((file.status, file.body.as_slice()), (200, &b"text\n"[..]));
    let info = fixture.get(&at("/files/info?path=/data")).expect(200);
    assert_eq!(info["isDir"], true);
    let entries = fixture.get(&at("/files?path=/data")).expect(200);
    assert_eq!(entries[0]["name"], "file");
    fixture.get(&at("/files/info?path=/none")).expect(404);

    fixture.send("POST", &at("/process/session"), &json!({ "sessionId": "s" })).expect(201);
    let request = json!({ "command": "cd /data; cat file; echo bad >&2" });
    let ended = fixture.send("POST", &at("/process/session/s/exec"), &request).expect(200);
    assert_eq!((&ended["stdout"], &ended["stderr"]), (&json!("text\n"), &json!("bad\n")));

    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    fixture.await_state(&id, "404");
    assert_eq!(containers(&engine, &container), 0);

    let other = fixture.create(&json!({}));
    let container = fixture.run(&other, "hostname").1.trim().to_owned();
    assert_eq!(containers(&engine, &container), 1);
    fixture.stop();
    assert_eq!(containers(&engine, &container), 0);
}
