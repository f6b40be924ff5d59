//! Auto-stop, auto-delete and time to live, with short minutes.

use std::time::Duration;

use creel_daytona_server::ApiVersion;
use serde_json::{Value, json};

use crate::fixture::ServerFixture;

fn fixture() -> ServerFixture {
    ServerFixture::hollow(|settings| {
        settings.api = ApiVersion::V0_226;
        settings.delays.minute = Duration::from_millis(300);
        settings.delays.timer_period = Duration::from_millis(20);
    })
}

#[test]
fn an_idle_sandbox_stops_and_is_deleted() {
    let fixture = fixture();
    let id = fixture.create(&json!({ "autoStopInterval": 1, "autoDeleteInterval": 2 }));
    fixture.await_state(&id, "stopped");
    fixture.await_state(&id, "404");
    let archived = fixture.create(&json!({ "autoStopInterval": 1, "autoArchiveInterval": 1 }));
    fixture.await_state(&archived, "archived");
}

#[test]
fn activity_keeps_a_sandbox_and_reading_it_does_not() {
    let fixture = fixture();
    let [busy, idle] = [(); 2].map(|()| fixture.create(&json!({ "autoStopInterval": 4 })));
    let stopped = creel_testkit::wait::eventually(crate::fixture::PATIENCE, || {
        let touched = fixture.send("POST", &format!("sandbox/{busy}/last-activity"), &Value::Null);
        assert_eq!(touched.status, 201);
        fixture.state(&idle) == "stopped"
    });
    assert!(stopped);
    assert_eq!(fixture.state(&busy), "started");
}

#[test]
fn auto_delete_spares_errors_and_time_to_live_does_not() {
    let fixture = fixture();
    fixture.arm(&json!({ "at": "create", "fault": "create_fails_after_alloc" }));
    let failed = |name: &str, body: Value| {
        fixture.send("POST", "sandbox", &body).expect(400);
        assert_eq!(fixture.state(name), "error");
    };
    failed("spared", json!({ "name": "spared", "autoDeleteInterval": 0 }));
    failed("ended", json!({ "name": "ended", "ttlMinutes": 2 }));
    fixture.await_state("ended", "404");
    assert_eq!(fixture.state("spared"), "error");
}

#[test]
fn a_time_to_live_is_counted_from_the_call_that_sets_it() {
    let fixture = ServerFixture::hollow(|settings| settings.api = ApiVersion::V0_226);
    let at = |sandbox: &Value, field: &str| -> jiff::Timestamp {
        sandbox[field].as_str().expect("it is an instant").parse().expect("it is an instant")
    };
    let id = fixture.create(&json!({ "ttlMinutes": 5 }));
    let created = fixture.get(&format!("sandbox/{id}")).expect(200);
    let life = at(&created, "autoDestroyAt").duration_since(at(&created, "createdAt"));
    assert_eq!(life.as_secs(), 300);
    // Seeded sandboxes were created long ago, so the two ends of life are far apart.
    let old = fixture.seed(&json!({ "count": 1, "age_seconds": 7200 })).remove(0);
    let moved = fixture.post(&format!("sandbox/{old}/ttl/5")).expect(201);
    let left = at(&moved, "autoDestroyAt").duration_since(jiff::Timestamp::now());
    assert!((290..=300).contains(&left.as_secs()), "{left:?}");
}
