//! The responses of the real service, v0.190.0, one by one.

use std::time::Duration;

use creel_daytona_server::ApiVersion;
use creel_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::fixture::{PATIENCE, ServerFixture};

/// Returns the rows that only the list flag shows.
fn hidden(fixture: &ServerFixture) -> Vec<Value> {
    let page = fixture.get("sandbox?includeErroredDeleted=true").expect(200);
    page["items"].as_array().expect("it is a list").clone()
}

#[test]
fn a_delete_in_error_is_accepted_and_the_row_stays_hidden() {
    let fixture = ServerFixture::hollow(|_| {});
    for state in ["error", "build_failed"] {
        let seed = json!({ "count": 1, "state": state, "error_reason": "the runner is lost" });
        let id = fixture.seed(&seed).remove(0);
        let accepted = fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
        assert_eq!(
            (&accepted["state"], &accepted["desiredState"]),
            (&json!(state), &json!("destroyed"))
        );
        fixture.get(&format!("sandbox/{id}")).expect(404);
        fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(404);
        assert!(fixture.list("").is_empty());
        let rows = hidden(&fixture);
        let row = rows.iter().find(|row| row["id"] == json!(id)).expect("one flag shows it");
        assert_eq!(row["errorReason"], "the runner is lost");
        assert_eq!((&row["state"], &row["desiredState"]), (&json!(state), &json!("destroyed")));
    }
}

#[test]
fn a_row_deleted_in_error_is_purged_after_its_retention() {
    let fixture = ServerFixture::hollow(|settings| {
        settings.delays.minute = Duration::from_micros(500);
        settings.delays.timer_period = Duration::from_millis(20);
    });
    let week = fixture.seed(&json!({ "count": 1, "state": "error" })).remove(0);
    let day = fixture.seed(&json!({ "count": 1, "state": "build_failed" })).remove(0);
    let decoy = fixture.seed(&json!({ "count": 1, "state": "error" })).remove(0);
    for id in [&week, &day] {
        fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    }
    let has = |id: &str| hidden(&fixture).iter().any(|row| row["id"] == json!(id));
    assert!(eventually(PATIENCE, || !has(&day)));
    assert!(has(&week), "a week is longer than a day");
    assert!(eventually(PATIENCE, || !has(&week)));
    assert_eq!(fixture.state(&decoy), "error", "no client deleted this one");
}

#[test]
fn the_backend_of_a_purged_row_is_released() {
    let fixture = ServerFixture::process_with(|settings| {
        settings.delays.minute = Duration::from_micros(500);
        settings.delays.timer_period = Duration::from_millis(20);
    });
    fixture.arm(&json!({ "at": "delete", "fault": "errored_deleted", "count": 1 }));
    // With minutes this short, an automatic stop would precede the delete.
    let id = fixture.create(&json!({ "autoStopInterval": 0 }));
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    fixture.await_state(&id, "404");
    let entries = || std::fs::read_dir(fixture.sandboxes()).map_or(0, Iterator::count);
    assert!(hidden(&fixture).len() == 1 && entries() > 0, "still there, still running");
    assert!(eventually(PATIENCE, || hidden(&fixture).is_empty() && entries() == 0));
}

#[test]
fn a_recovered_sandbox_can_be_deleted_for_good() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.seed(&json!({ "count": 1, "state": "error", "recoverable": true })).remove(0);
    fixture.post(&format!("sandbox/{id}/recover")).expect(200);
    fixture.await_state(&id, "started");
    fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    fixture.await_state(&id, "404");
    assert!(hidden(&fixture).is_empty());
}

#[test]
fn a_create_may_respond_before_the_start() {
    let fixture = ServerFixture::hollow(|_| {});
    let states: Vec<Value> = (0..2)
        .map(|_| fixture.send("POST", "sandbox", &json!({})).expect(200)["state"].clone())
        .collect();
    assert_eq!(states, [json!("started"), json!("creating")]);
    for id in fixture.list("") {
        assert_eq!(fixture.state(&id), "started");
    }
}

#[test]
fn a_time_to_live_is_unknown_without_the_newer_api() {
    let fixture = ServerFixture::hollow(|_| {});
    let id = fixture.create(&json!({ "ttlMinutes": 1 }));
    let refused = fixture.post(&format!("sandbox/{id}/ttl/5")).expect(404);
    assert_eq!(refused["message"], format!("Cannot POST /api/sandbox/{id}/ttl/5"));
    assert_eq!(fixture.get(&format!("sandbox/{id}")).expect(200)["autoDestroyAt"], Value::Null);
}

#[test]
fn unknown_snapshots_and_regions_are_refused() {
    let fixture = ServerFixture::hollow(|settings| settings.snapshots.push("mine:1".to_owned()));
    let refused = fixture.send("POST", "sandbox", &json!({ "snapshot": "other:2" })).expect(400);
    let message = refused["message"].as_str().expect("an error has a message");
    assert!(message.starts_with("Snapshot other:2 not found"), "{message}");
    let refused = fixture.send("POST", "sandbox", &json!({ "target": "moon" })).expect(404);
    assert_eq!(refused["message"], "Region not found");
    assert!(fixture.list("").is_empty(), "nothing was made");
    fixture.create(&json!({ "snapshot": "mine:1", "target": "eu" }));
}

#[test]
fn the_older_list_pages_by_number() {
    let fixture = ServerFixture::hollow(|_| {});
    let ids = fixture.seed(&json!({ "count": 5, "labels": { "a": "1" } }));
    fixture.seed(&json!({ "count": 2 }));
    let labels = "labels=%7B%22a%22%3A%221%22%7D";
    let mut seen = Vec::new();
    for page in 1..=3 {
        let body =
            fixture.get(&format!("sandbox/paginated?{labels}&limit=2&page={page}")).expect(200);
        assert_eq!((&body["total"], &body["totalPages"]), (&json!(5), &json!(3)));
        let items = body["items"].as_array().expect("it is a list");
        seen.extend(items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)));
    }
    seen.reverse();
    assert_eq!(seen, ids, "the newest come first");
    fixture.get("sandbox/paginated?page=0").expect(400);
}

#[test]
fn texts_and_paths_of_errors_match_the_service() {
    let fixture = ServerFixture::hollow(|_| {});
    for (path, message) in [
        ("sandbox?cursor=abc", "Invalid cursor provided: abc"),
        ("sandbox?labels=nonsense", "Invalid labels JSON format"),
        ("nope", "Cannot GET /api/nope"),
    ] {
        let response = fixture.get(path);
        assert_eq!(response.json()["message"], message);
        assert_eq!(response.json()["path"], format!("/api/{path}"), "with its query");
    }
    let stopped = fixture.seed(&json!({ "count": 1, "state": "stopped" })).remove(0);
    let refused = fixture.post(&format!("sandbox/{stopped}/stop")).expect(400);
    assert_eq!(refused["message"], "Sandbox is not in a stoppable state");
}

#[test]
fn fields_match_the_service() {
    let fixture = ServerFixture::hollow(|_| {});
    let created =
        fixture.send("POST", "sandbox", &json!({ "networkAllowList": "10.0.0.0/8" })).expect(200);
    assert_eq!(created["daemonVersion"], Value::Null, "its daemon has not answered yet");
    let id = created["id"].as_str().expect("every sandbox has an id");
    let one = fixture.get(&format!("sandbox/{id}")).expect(200);
    assert_eq!(one["networkAllowList"], "10.0.0.0/8");
    let has = |row: &Value, field: &str| row.as_object().is_some_and(|all| all.contains_key(field));
    for field in ["runnerId", "errorReason", "networkAllowList", "domainAllowList", "kvm"] {
        assert!(has(&one, field), "{field}");
    }
    let page = fixture.get("sandbox").expect(200);
    for field in ["runnerId", "errorReason", "networkBlockAll", "daemonVersion"] {
        assert!(has(&page["items"][0], field), "{field}");
    }
}

#[test]
fn the_exact_imitation_lacks_the_newer_fields() {
    let fixture = ServerFixture::hollow(|settings| settings.api = ApiVersion::V0_190);
    let id = fixture.create(&json!({}));
    let one = fixture.get(&format!("sandbox/{id}")).expect(200);
    assert!(one.get("kvm").is_none() && one.get("networkBlockAll").is_some());
    let page = fixture.get("sandbox").expect(200);
    assert!(page["items"][0].get("networkBlockAll").is_none());
}

#[test]
fn a_pending_action_does_not_change_the_state() {
    let fixture =
        ServerFixture::hollow(|settings| settings.delays.pending = Duration::from_millis(300));
    for (state, method, path, desired) in [
        ("started", "POST", "/stop", "stopped"),
        ("started", "DELETE", "", "destroyed"),
        ("stopped", "DELETE", "", "destroyed"),
    ] {
        let id = fixture.seed(&json!({ "count": 1, "state": state })).remove(0);
        fixture.send(method, &format!("sandbox/{id}{path}"), &Value::Null).expect(200);
        let pending = fixture.get(&format!("sandbox/{id}")).expect(200);
        assert_eq!((&pending["state"], &pending["desiredState"]), (&json!(state), &json!(desired)));
        fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
        fixture.await_state(&id, if desired == "stopped" { "stopped" } else { "404" });
    }
}

#[test]
fn more_rows_than_a_page_within_a_millisecond_repeat_the_cursor() {
    let fixture = ServerFixture::hollow(|_| {});
    fixture.seed(&json!({ "count": 5, "same_millisecond": true }));
    let query = "sandbox?sort=createdAt&order=asc&limit=2";
    let first = fixture.get(query).expect(200);
    let cursor = first["nextCursor"].as_str().expect("there is more");
    let second = fixture.get(&format!("{query}&cursor={cursor}")).expect(200);
    assert_eq!(second["nextCursor"], json!(cursor));
}
