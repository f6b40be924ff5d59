//! Sandboxes that are containers of a real engine.

use creel_testkit::engine::Engine;
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::runner::tests;

tests![a_container_is_a_sandbox];

/// Returns the containers that creel made, whatever their state.
fn containers(engine: &Engine, id: &str) -> usize {
    let output = std::process::Command::new("docker")
        .args(["--host", &engine.host(), "ps", "-aq", "--no-trunc"])
        .args(["--filter", "label=dev.creel.owner", "--filter", &format!("id={id}")])
        .output()
        .expect("the docker program is there");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

fn a_container_is_a_sandbox() {
    let engine = Engine::from_env();
    let mut bench = Bench::docker(&engine);
    let id = bench.create(&json!({ "env": { "GREETING": "hi" } }));
    let (code, output) = bench.run(&id, "echo $GREETING; cat /proc/1/cmdline >/dev/null; exit 4");
    assert_eq!((code, output.as_str()), (4, "hi\n"));
    let container = bench.run(&id, "hostname").1.trim().to_owned();
    assert_eq!(containers(&engine, &container), 1);

    let at = |path: &str| format!("toolbox/{id}{path}");
    let order = json!({ "command": "sleep 77", "timeout": 1 });
    bench.ask("POST", &at("/process/execute"), &order).expect(408);
    bench.run(&id, "mkdir -p /data && echo text >/data/file");
    let file = bench.get(&at("/files/download?path=/data/file"));
    assert_eq!((file.status, file.body.as_slice()), (200, &b"text\n"[..]));
    let info = bench.get(&at("/files/info?path=/data")).expect(200);
    assert_eq!(info["isDir"], true);
    let entries = bench.get(&at("/files?path=/data")).expect(200);
    assert_eq!(entries[0]["name"], "file");
    bench.get(&at("/files/info?path=/none")).expect(404);

    bench.ask("POST", &at("/process/session"), &json!({ "sessionId": "s" })).expect(201);
    let order = json!({ "command": "cd /data; cat file; echo bad >&2" });
    let ended = bench.ask("POST", &at("/process/session/s/exec"), &order).expect(200);
    assert_eq!((&ended["stdout"], &ended["stderr"]), (&json!("text\n"), &json!("bad\n")));

    bench.ask("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    bench.await_state(&id, "404");
    assert_eq!(containers(&engine, &container), 0);

    let other = bench.create(&json!({}));
    let container = bench.run(&other, "hostname").1.trim().to_owned();
    assert_eq!(containers(&engine, &container), 1);
    bench.stop();
    assert_eq!(containers(&engine, &container), 0);
}
