//! Every fault fires, has its documented effect, and is counted.

use serde_json::{Value, json};

use crate::bench::Bench;
use crate::runner::tests;

tests![
    a_status_comes_with_its_headers_and_does_nothing,
    a_cut_before_does_nothing_and_a_cut_after_does_it,
    half_a_body_breaks_off,
    latency_delays,
    a_stuck_start_stays_and_cannot_be_deleted,
    a_stuck_delete_stays_destroying,
    an_errored_delete_hides_from_everything_but_one_flag,
    a_flapping_list_forgets_and_remembers,
    a_failed_create_leaves_its_sandbox,
    an_expired_key_and_a_captive_portal,
    a_fault_strikes_only_whom_it_names,
    a_scenario_file_brings_faults_seeds_and_limits,
];

fn a_status_comes_with_its_headers_and_does_nothing() {
    let bench = Bench::hollow(|_| {});
    bench.arm(&json!({ "at": "create", "fault": "status", "status": 429,
        "headers": { "Retry-After-sandbox-create": "7" }, "count": 1 }));
    let response = bench.send("POST", "sandbox", &json!({ "name": "a" }));
    assert_eq!(response.headers["retry-after-sandbox-create"], "7");
    let body = response.expect(429);
    assert_eq!(body["statusCode"], 429);
    assert_eq!(body["path"], "/api/sandbox");
    assert_eq!(bench.state("a"), "404");
    bench.create(&json!({ "name": "a" }));
    assert_eq!(bench.fired(), [1]);
}

fn a_cut_before_does_nothing_and_a_cut_after_does_it() {
    let bench = Bench::hollow(|_| {});
    for (fault, state) in [("cut_before", "404"), ("cut_after", "started")] {
        bench.arm(&json!({ "at": "create", "fault": fault, "count": 1 }));
        assert!(bench.try_send("POST", "sandbox", &json!({ "name": fault })).is_err());
        assert_eq!(bench.state(fault), state, "{fault}");
    }
    assert_eq!(bench.fired(), [1, 1]);
    let counts = bench.admin("GET", "requests", &Value::Null);
    assert_eq!((&counts["cut"], &counts["by_route"]["POST /sandbox"]), (&json!(2), &json!(2)));
}

fn half_a_body_breaks_off() {
    let bench = Bench::hollow(|_| {});
    bench.arm(&json!({ "at": "list", "fault": "half_body", "count": 1 }));
    assert!(bench.try_send("GET", "sandbox", &Value::Null).is_err());
    bench.get("sandbox").expect(200);
    assert_eq!(bench.fired(), [1]);
}

fn latency_delays() {
    let bench = Bench::hollow(|_| {});
    bench.arm(&json!({ "at": "list", "fault": "latency", "seconds": 0.3, "count": 1 }));
    let started_at = std::time::Instant::now();
    bench.get("sandbox").expect(200);
    assert!(started_at.elapsed().as_millis() >= 300);
    assert_eq!(bench.fired(), [1]);
}

fn a_stuck_start_stays_and_cannot_be_deleted() {
    let bench = Bench::hollow(|settings| {
        settings.delays.answer = std::time::Duration::from_millis(50);
    });
    bench.arm(&json!({ "at": "create", "fault": "stuck_starting", "count": 1 }));
    let id = bench.create(&json!({}));
    assert_eq!(bench.state(&id), "creating");
    bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
    let other = bench.seed(&json!({ "count": 1, "state": "starting" })).remove(0);
    bench.send("DELETE", &format!("sandbox/{other}"), &Value::Null).expect(409);
    assert_eq!(bench.fired(), [1]);
}

fn a_stuck_delete_stays_destroying() {
    let bench = Bench::hollow(|_| {});
    let id = bench.create(&json!({}));
    bench.arm(&json!({ "at": "delete", "fault": "stuck_destroying", "seconds": 0.5, "count": 1 }));
    let deleted = bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    assert_eq!(deleted["desiredState"], "destroyed");
    bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
    bench.await_state(&id, "destroying");
    bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(409);
    bench.await_state(&id, "404");
    assert_eq!(bench.fired(), [1]);
}

fn an_errored_delete_hides_from_everything_but_one_flag() {
    let bench = Bench::hollow(|_| {});
    let id = bench.create(&json!({}));
    bench.arm(&json!({ "fault": "errored_deleted" }));
    bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    bench.await_state(&id, "404");
    bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(404);
    assert!(bench.list("").is_empty());
    let page = bench.get("sandbox?includeErroredDeleted=true").expect(200);
    let row = &page["items"][0];
    assert_eq!((&row["state"], &row["desiredState"]), (&json!("error"), &json!("destroyed")));
    assert_eq!(row["id"], json!(id));
    assert_eq!(bench.fired(), [2]);
}

fn a_flapping_list_forgets_and_remembers() {
    let bench = Bench::hollow(|_| {});
    let id = bench.create(&json!({ "name": "flapping" }));
    bench.arm(&json!({ "at": "delete", "fault": "flap", "seconds": 0.6, "count": 1 }));
    bench.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
    assert!(bench.list("").is_empty());
    bench.await_state(&id, "404");
    let remembered = creel_testkit::wait::eventually_some(crate::bench::PATIENCE, || {
        let page = bench.get("sandbox").expect(200);
        page["items"].get(0).cloned()
    });
    let row = remembered.expect("it comes back");
    assert_eq!((&row["state"], &row["name"]), (&json!("started"), &json!("flapping")));
    assert_eq!(bench.state(&id), "404");
    let forgotten =
        creel_testkit::wait::eventually(crate::bench::PATIENCE, || bench.list("").is_empty());
    assert!(forgotten);
    assert_eq!(bench.fired(), [1]);
}

fn a_failed_create_leaves_its_sandbox() {
    let bench = Bench::hollow(|_| {});
    bench.arm(&json!({ "at": "create", "fault": "create_fails_after_alloc", "count": 1 }));
    let refused = bench.send("POST", "sandbox", &json!({ "name": "leaked" })).expect(400);
    let message = refused["message"].as_str().expect("an error has a message");
    assert!(message.starts_with("Sandbox failed to start: "), "{message}");
    assert_eq!(refused["id"], Value::Null);
    assert_eq!(bench.state("leaked"), "error");
    assert_eq!(bench.fired(), [1]);
}

fn an_expired_key_and_a_captive_portal() {
    let bench = Bench::hollow(|_| {});
    bench.arm(&json!({ "at": "get", "fault": "expired_key", "count": 1 }));
    bench.arm(&json!({ "at": "list", "fault": "html", "count": 1 }));
    bench.arm(&json!({ "at": "list", "fault": "html", "status": 503, "count": 1 }));
    bench.get("sandbox/x").expect(401);
    for status in [200, 503] {
        let response = bench.get("sandbox");
        assert_eq!(response.status, status);
        assert!(response.headers["content-type"].starts_with("text/html"));
    }
    assert_eq!(bench.fired(), [1, 1, 1]);
}

fn a_fault_strikes_only_whom_it_names() {
    let bench = Bench::hollow(|_| {});
    let id = bench.create(&json!({ "name": "mine", "labels": { "run": "1" } }));
    let other = bench.create(&json!({ "name": "other" }));
    for matching in [json!({ "label": "run=1" }), json!({ "id": id }), json!({ "name": "mi*" })] {
        bench.admin("DELETE", "faults", &Value::Null);
        bench.arm(&json!({ "at": "get", "match": matching, "fault": "status", "status": 502 }));
        bench.get(&format!("sandbox/{other}")).expect(200);
        bench.get(&format!("sandbox/{id}")).expect(502);
        bench.get("sandbox/mine").expect(502);
        assert_eq!(bench.fired(), [2]);
    }
    bench.admin("DELETE", "faults", &Value::Null);
    bench.arm(&json!({ "at": "create", "match": { "label": "run" }, "fault": "status" }));
    bench.send("POST", "sandbox", &json!({ "labels": { "run": "2" } })).expect(500);
    bench.create(&json!({}));
}

fn a_scenario_file_brings_faults_seeds_and_limits() {
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    let text = "permissions = [\"write:sandboxes\"]\n\
        [rate_limits]\nauthenticated = 2\n\
        [[faults]]\nat = \"create\"\nfault = \"status\"\nstatus = 503\ncount = 1\n\
        match = { name = \"a\" }\n\
        [[seeds]]\ncount = 3\nstate = \"stopped\"\nlabels = { old = \"yes\" }\n";
    std::fs::write(file.path(), text).expect("the file is ours");
    let scenario = creel_daytona_server::Scenario::read(file.path()).expect("it is well formed");
    let bench = Bench::hollow(|settings| settings.scenario = scenario);
    bench.send("POST", "sandbox", &json!({ "name": "a" })).expect(503);
    let ids = bench.list("states=stopped");
    assert_eq!(ids.len(), 3);
    bench.send("DELETE", &format!("sandbox/{}", ids[0]), &Value::Null).expect(403);
    bench.get("api-keys/current").expect(200);
    bench.get("sandbox").expect(429);
    std::fs::write(file.path(), "[[faults]]\nfault = \"nonsense\"\n").expect("the file is ours");
    assert!(creel_daytona_server::Scenario::read(file.path()).is_err());
}
