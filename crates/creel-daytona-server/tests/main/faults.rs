//! Every fault fires, has its documented effect, and is counted.

use serde_json::{Value, json};

use crate::fixture::ServerFixture;

#[test]
fn a_status_comes_with_its_headers_and_does_nothing() {
    let fixture = ServerFixture::hollow(|_| {});
    fixture.arm(&json!({ "at": "create", "fault": "status", "status": 429,
        "headers": { "Retry-After-sandbox-create": "7" }, "count": 1 }));
    let response = fixture.send("POST", "sandbox", &json!({ "name": "a" }));
    assert_eq!(response.headers["retry-after-sandbox-create"], "7");
    let body = response.expect(429);
    assert_eq!(body["statusCode"], 429);
    assert_eq!(body["path"], "/api/sandbox");
    assert_eq!(fixture.state("a"), "404");
    fixture.create(&json!({ "name": "a" }));
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn a_cut_before_does_nothing_and_a_cut_after_does_it() {
    let fixture = ServerFixture::hollow(|_| {});
    for (fault, state) in [("cut_before", "404"), ("cut_after", "started")] {
        fixture.arm(&json!({ "at": "create", "fault": fault, "count": 1 }));
        assert!(fixture.try_send("POST", "sandbox", &json!({ "name": fault })).is_err());
        assert_eq!(fixture.state(fault), state, "{fault}");
    }
    assert_eq!(fixture.fired(), [1, 1]);
    let counts = fixture.admin("GET", "requests", &Value::Null);
    assert_eq!((&counts["cut"], &counts["by_route"]["POST /sandbox"]), (&json!(2), &json!(2)));
}

#[test]
fn half_a_body_breaks_off() {
    let fixture = ServerFixture::hollow(|_| {});
    fixture.arm(&json!({ "at": "list", "fault": "half_body", "count": 1 }));
    assert!(fixture.try_send("GET", "sandbox", &Value::Null).is_err());
    fixture.get("sandbox").expect(200);
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn latency_delays() {
    let fixture = ServerFixture::hollow(|_| {});
    fixture.arm(&json!({ "at": "list", "fault": "latency", "seconds": 0.3, "count": 1 }));
    let started_at = std::time::Instant::now();
    fixture.get("sandbox").expect(200);
    assert!(started_at.elapsed().as_millis() >= 300);
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn a_stuck_start_stays_and_cannot_be_deleted() {
    let fixture = ServerFixture::hollow(|settings| {
        settings.delays.answer = std::time::Duration::from_millis(50);
    });
    fixture.arm(&json!({ "at": "create", "fault": "stuck_starting", "count": 1 }));
    let id = fixture.create(&json!({}));
    assert_eq!(fixture.state(&id), "creating");
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
    let other = fixture.seed(&json!({ "count": 1, "state": "starting" })).remove(0);
    fixture.send("DELETE", &format!("sandbox/{other}"), &Value::Null).expect(409);
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn a_stuck_delete_stays_destroying() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({}));
    fixture
        .arm(&json!({ "at": "delete", "fault": "stuck_destroying", "seconds": 0.5, "count": 1 }));
    let deleted = fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    assert_eq!(deleted["desiredState"], "destroyed");
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
    fixture.await_state(&id, "destroying");
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
    fixture.await_state(&id, "404");
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn an_errored_delete_is_visible_only_with_one_flag() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({}));
    fixture.arm(&json!({ "fault": "errored_deleted" }));
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    fixture.await_state(&id, "404");
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(404);
    assert!(fixture.list("").is_empty());
    let page = fixture.get("sandbox?includeErroredDeleted=true").expect(200);
    let row = &page["items"][0];
    assert_eq!((&row["state"], &row["desiredState"]), (&json!("error"), &json!("destroyed")));
    assert_eq!(row["id"], json!(id));
    assert_eq!(fixture.fired(), [2]);
}

#[test]
fn a_flapping_list_omits_rows_for_a_while() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({ "name": "flapping" }));
    fixture.arm(&json!({ "at": "delete", "fault": "flap", "seconds": 0.6, "count": 1 }));
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    assert!(fixture.list("").is_empty());
    fixture.await_state(&id, "404");
    let remembered = creel_testkit::wait::eventually_some(crate::fixture::PATIENCE, || {
        let page = fixture.get("sandbox").expect(200);
        page["items"].get(0).cloned()
    });
    let row = remembered.expect("it comes back");
    assert_eq!((&row["state"], &row["name"]), (&json!("started"), &json!("flapping")));
    assert_eq!(fixture.state(&id), "404");
    let forgotten =
        creel_testkit::wait::eventually(crate::fixture::PATIENCE, || fixture.list("").is_empty());
    assert!(forgotten);
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn a_failed_create_leaves_its_sandbox() {
    let fixture = ServerFixture::hollow(|_| {});
    fixture.arm(&json!({ "at": "create", "fault": "create_fails_after_alloc", "count": 1 }));
    let refused = fixture.send("POST", "sandbox", &json!({ "name": "leaked" })).expect(400);
    let message = refused["message"].as_str().expect("an error has a message");
    assert!(message.starts_with("Sandbox failed to start: "), "{message}");
    assert_eq!(refused["id"], Value::Null);
    assert_eq!(fixture.state("leaked"), "error");
    assert_eq!(fixture.fired(), [1]);
}

#[test]
fn an_expired_key_and_a_captive_portal_are_simulated() {
    let fixture = ServerFixture::hollow(|_| {});
    fixture.arm(&json!({ "at": "get", "fault": "expired_key", "count": 1 }));
    fixture.arm(&json!({ "at": "list", "fault": "html", "count": 1 }));
    fixture.arm(&json!({ "at": "list", "fault": "html", "status": 503, "count": 1 }));
    fixture.get("sandbox/x").expect(401);
    for status in [200, 503] {
        let response = fixture.get("sandbox");
        assert_eq!(response.status, status);
        assert!(response.headers["content-type"].starts_with("text/html"));
    }
    assert_eq!(fixture.fired(), [1, 1, 1]);
}

#[test]
fn a_fault_fires_only_for_the_requests_it_names() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({ "name": "mine", "labels": { "run": "1" } }));
    let other = fixture.create(&json!({ "name": "other" }));
    for matching in [json!({ "label": "run=1" }), json!({ "id": id }), json!({ "name": "mi*" })] {
        fixture.admin("DELETE", "faults", &Value::Null);
        fixture.arm(&json!({ "at": "get", "match": matching, "fault": "status", "status": 502 }));
        fixture.get(&format!("sandbox/{other}")).expect(200);
        fixture.get(&format!("sandbox/{id}")).expect(502);
        fixture.get("sandbox/mine").expect(502);
        assert_eq!(fixture.fired(), [2]);
    }
    fixture.admin("DELETE", "faults", &Value::Null);
    fixture.arm(&json!({ "at": "create", "match": { "label": "run" }, "fault": "status" }));
    fixture.send("POST", "sandbox", &json!({ "labels": { "run": "2" } })).expect(500);
    fixture.create(&json!({}));
}

#[test]
fn a_scenario_file_defines_faults_seeds_and_limits() {
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    let text = "permissions = [\"write:sandboxes\"]\n\
        [rate_limits]\nauthenticated = 2\n\
        [[faults]]\nat = \"create\"\nfault = \"status\"\nstatus = 503\ncount = 1\n\
        match = { name = \"a\" }\n\
        [[seeds]]\ncount = 3\nstate = \"stopped\"\nlabels = { old = \"yes\" }\n";
    std::fs::write(file.path(), text).expect("the file is ours");
    let scenario = creel_daytona_server::Scenario::read(file.path()).expect("it is well formed");
    let fixture = ServerFixture::hollow(|settings| settings.scenario = scenario);
    fixture.send("POST", "sandbox", &json!({ "name": "a" })).expect(503);
    let ids = fixture.list("states=stopped");
    assert_eq!(ids.len(), 3);
    fixture.send("DELETE", &format!("sandbox/{}", ids[0]), &Value::Null).expect(403);
    fixture.get("api-keys/current").expect(200);
    fixture.get("sandbox").expect(429);
    std::fs::write(file.path(), "[[faults]]\nfault = \"nonsense\"\n").expect("the file is ours");
    assert!(creel_daytona_server::Scenario::read(file.path()).is_err());
}
