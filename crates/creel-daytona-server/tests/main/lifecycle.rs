//! States, names, conflicts, and authentication.

use creel_daytona_server::ApiVersion;
use serde_json::{Value, json};

use crate::client::{Request, send};
use crate::fixture::ServerFixture;

#[test]
fn a_sandbox_is_created_stopped_started_and_deleted() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({ "name": "one" }));
    assert_eq!(fixture.state("one"), "started");
    let stopping = fixture.post("sandbox/one/stop?force=false").expect(200);
    assert_eq!(
        (&stopping["state"], &stopping["desiredState"]),
        (&json!("started"), &json!("stopped")),
        "the runner has not taken it up"
    );
    fixture.await_state(&id, "stopped");
    let started = fixture.post("sandbox/one/start").expect(200);
    assert_eq!(started["state"], "started");
    let deleted = fixture.send("DELETE", "sandbox/one", &Value::Null).expect(200);
    assert_eq!(
        (&deleted["state"], &deleted["desiredState"]),
        (&json!("started"), &json!("destroyed"))
    );
    fixture.await_state(&id, "404");
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(404);
}

#[test]
fn a_deleted_name_is_free_at_once() {
    let fixture = ServerFixture::hollow(|settings| {
        settings.delays.destroy = std::time::Duration::from_secs(2);
    });
    let first = fixture.create(&json!({ "name": "again" }));
    fixture.send("POST", "sandbox", &json!({ "name": "again" })).expect(409);
    fixture.send("DELETE", &format!("sandbox/{first}"), &Value::Null).expect(200);
    assert_eq!(fixture.state("again"), "404");
    fixture.await_state(&first, "destroying");
    let left = fixture.get(&format!("sandbox/{first}")).expect(200);
    let name = left["name"].as_str().expect("every sandbox has a name");
    assert!(name.starts_with("DESTROYED_again_"), "{name}");
    let second = fixture.create(&json!({ "name": "again" }));
    assert_ne!(first, second);
    fixture.await_state(&first, "404");
    assert_eq!(fixture.state("again"), "started");
}

#[test]
fn actions_in_the_wrong_state_are_refused() {
    let fixture = ServerFixture::hollow(|_| {});
    let expected = [
        ("creating", "DELETE", "", 409),
        ("stopping", "DELETE", "", 409),
        ("destroying", "DELETE", "", 409),
        ("archiving", "DELETE", "", 200),
        ("error", "DELETE", "", 200),
        ("stopping", "POST", "/stop", 409),
        ("stopped", "POST", "/stop", 400),
        ("error", "POST", "/stop", 400),
        ("started", "POST", "/start", 200),
        ("error", "POST", "/start", 400),
        ("started", "POST", "/archive", 400),
        ("started", "POST", "/recover", 400),
        ("error", "POST", "/recover", 400),
    ];
    for (state, method, path, status) in expected {
        let id = fixture.seed(&json!({ "count": 1, "state": state })).remove(0);
        let response = fixture.send(method, &format!("sandbox/{id}{path}"), &Value::Null);
        assert_eq!(response.status, status, "{method} {path} in {state}");
        if status == 409 {
            assert_eq!(response.json()["message"], "Sandbox state change in progress");
        }
    }
}

#[test]
fn stopping_an_ephemeral_sandbox_deletes_it() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({ "autoDeleteInterval": 0 }));
    fixture.post(&format!("sandbox/{id}/stop")).expect(200);
    fixture.await_state(&id, "404");
}

#[test]
fn archived_and_paused_sandboxes_start_again() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({}));
    fixture.post(&format!("sandbox/{id}/pause")).expect(200);
    fixture.await_state(&id, "paused");
    fixture.post(&format!("sandbox/{id}/start")).expect(200);
    fixture.await_state(&id, "started");
    fixture.post(&format!("sandbox/{id}/stop")).expect(200);
    fixture.await_state(&id, "stopped");
    fixture.post(&format!("sandbox/{id}/archive")).expect(200);
    fixture.await_state(&id, "archived");
    fixture.post(&format!("sandbox/{id}/start")).expect(200);
    fixture.await_state(&id, "started");
}

#[test]
fn creates_are_validated() {
    let fixture = ServerFixture::hollow(|_| {});
    let wrong = [
        json!({ "cpu": 2 }),
        json!({ "snapshot": "a", "buildInfo": { "dockerfileContent": "FROM a\n" } }),
        json!({ "autoStopInterval": -1 }),
        json!({ "name": "" }),
    ];
    for body in wrong {
        let refused = fixture.send("POST", "sandbox", &body).expect(400);
        assert_eq!(refused["path"], "/api/sandbox", "{body}");
    }
    let unparsed = fixture.send("POST", "sandbox", &json!({ "labels": 7 })).expect(400);
    assert_eq!((&unparsed["path"], &unparsed["timestamp"]), (&Value::Null, &Value::Null));
    let build = json!({ "cpu": 2, "buildInfo": { "dockerfileContent": "FROM a\n" } });
    let id = fixture.create(&build);
    fixture.await_state(&id, "started");
}

#[test]
fn labels_and_intervals_are_set() {
    let fixture = ServerFixture::hollow(|settings| settings.api = ApiVersion::V0_226);
    let id = fixture.create(&json!({ "labels": { "a": "1" }, "ttlMinutes": 5 }));
    assert!(fixture.get(&format!("sandbox/{id}")).json()["autoDestroyAt"].is_string());
    let labelled =
        fixture.send("PUT", &format!("sandbox/{id}/labels"), &json!({ "labels": { "b": "2" } }));
    assert_eq!(labelled.expect(200)["labels"], json!({ "b": "2" }));
    for path in ["autostop/7", "autoarchive/8", "autodelete/-1", "ttl/0"] {
        fixture.post(&format!("sandbox/{id}/{path}")).expect(201);
    }
    let touched = fixture.post(&format!("sandbox/{id}/last-activity"));
    assert_eq!((touched.status, touched.body.len()), (201, 0));
    let seen = fixture.get(&format!("sandbox/{id}")).expect(200);
    assert_eq!((&seen["autoStopInterval"], &seen["autoArchiveInterval"]), (&json!(7), &json!(8)));
    assert_eq!(seen["autoDestroyAt"], Value::Null);
}

#[test]
fn access_responses_have_the_right_shape() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({}));
    for (method, path, field) in [
        ("GET", "ports/3000/preview-url", "token"),
        ("GET", "ports/3000/signed-preview-url?expiresInSeconds=60", "url"),
        ("POST", "ssh-access?expiresInMinutes=60", "sshCommand"),
        ("GET", "toolbox-proxy-url", "url"),
    ] {
        let body = fixture.send(method, &format!("sandbox/{id}/{path}"), &Value::Null).expect(200);
        assert!(body[field].is_string(), "{path}");
    }
    fixture.get("config").expect(200);
    fixture.get("socket.io/?EIO=4&transport=websocket").expect(404);
    let dead = fixture.get(&format!("toolbox/{id}/version"));
    assert_eq!((dead.status, dead.body.as_slice()), (502, &b"Bad Gateway"[..]));
}

#[test]
fn only_the_right_host_and_key_are_accepted() {
    let fixture = ServerFixture::hollow(|_| {});
    let running = fixture.running();
    let (url, key) = (format!("{}/sandbox", running.url()), running.api_key());
    let (key, jwt) = (format!("Bearer {key}"), format!("Bearer {}", running.jwt()));
    let organization = ("X-Daytona-Organization-ID", running.organization_id());
    let status_of = |headers: &[(&str, &str)]| {
        let request = Request { method: "GET", url: &url, headers, body: b"" };
        send(&request).expect("the server answers").status
    };
    assert_eq!(status_of(&[("Authorization", &key)]), 200);
    assert_eq!(status_of(&[("Authorization", &key), ("Host", "evil.example")]), 403);
    assert_eq!(status_of(&[]), 401);
    assert_eq!(status_of(&[("Authorization", "Bearer wrong")]), 401);
    assert_eq!(status_of(&[("Authorization", &jwt)]), 401);
    assert_eq!(status_of(&[("Authorization", &jwt), organization]), 200);
    let other = ("X-Daytona-Organization-ID", "another");
    assert_eq!(status_of(&[("Authorization", &jwt), other]), 403);
}

#[test]
fn a_key_without_the_scope_cannot_delete() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({}));
    fixture.admin("PUT", "permissions", &json!(["write:sandboxes"]));
    let key = fixture.get("api-keys/current").expect(200);
    assert_eq!(key["permissions"], json!(["write:sandboxes"]));
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(403);
    fixture.post(&format!("sandbox/{id}/stop")).expect(200);
}

#[test]
fn only_loopback_is_listened_on() {
    let mut settings = creel_daytona_server::Settings::hollow();
    settings.listen = "0.0.0.0:0".parse().expect("it is an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let started = runtime.block_on(creel_daytona_server::Server::start(settings));
    assert!(started.is_err());
}
