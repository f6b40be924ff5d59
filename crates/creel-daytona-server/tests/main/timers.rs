//! Auto-stop, auto-delete and time to live, with short minutes.

use std::time::Duration;

use creel_daytona_server::ApiVersion;
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::runner::tests;

tests![
    an_idle_sandbox_stops_and_is_deleted,
    activity_keeps_a_sandbox_and_reading_it_does_not,
    auto_delete_spares_errors_and_time_to_live_does_not,
    a_time_to_live_is_counted_from_the_call_that_sets_it,
];

fn bench() -> Bench {
    Bench::hollow(|settings| {
        settings.api = ApiVersion::V0_226;
        settings.delays.minute = Duration::from_millis(300);
        settings.delays.timer_period = Duration::from_millis(20);
    })
}

fn an_idle_sandbox_stops_and_is_deleted() {
    let bench = bench();
    let id = bench.create(&json!({ "autoStopInterval": 1, "autoDeleteInterval": 2 }));
    bench.await_state(&id, "stopped");
    bench.await_state(&id, "404");
    let archived = bench.create(&json!({ "autoStopInterval": 1, "autoArchiveInterval": 1 }));
    bench.await_state(&archived, "archived");
}

fn activity_keeps_a_sandbox_and_reading_it_does_not() {
    let bench = bench();
    let [busy, idle] = [(); 2].map(|()| bench.create(&json!({ "autoStopInterval": 4 })));
    let stopped = creel_testkit::wait::eventually(crate::bench::PATIENCE, || {
        let touched = bench.send("POST", &format!("sandbox/{busy}/last-activity"), &Value::Null);
        assert_eq!(touched.status, 201);
        bench.state(&idle) == "stopped"
    });
    assert!(stopped);
    assert_eq!(bench.state(&busy), "started");
}

fn auto_delete_spares_errors_and_time_to_live_does_not() {
    let bench = bench();
    bench.arm(&json!({ "at": "create", "fault": "create_fails_after_alloc" }));
    let failed = |name: &str, body: Value| {
        bench.send("POST", "sandbox", &body).expect(400);
        assert_eq!(bench.state(name), "error");
    };
    failed("spared", json!({ "name": "spared", "autoDeleteInterval": 0 }));
    failed("ended", json!({ "name": "ended", "ttlMinutes": 2 }));
    bench.await_state("ended", "404");
    assert_eq!(bench.state("spared"), "error");
}

fn a_time_to_live_is_counted_from_the_call_that_sets_it() {
    let bench = Bench::hollow(|settings| settings.api = ApiVersion::V0_226);
    let at = |sandbox: &Value, field: &str| -> jiff::Timestamp {
        sandbox[field].as_str().expect("it is an instant").parse().expect("it is an instant")
    };
    let id = bench.create(&json!({ "ttlMinutes": 5 }));
    let created = bench.get(&format!("sandbox/{id}")).expect(200);
    let life = at(&created, "autoDestroyAt").duration_since(at(&created, "createdAt"));
    assert_eq!(life.as_secs(), 300);
    // Seeded sandboxes were created long ago, so the two ends of life are far apart.
    let old = bench.seed(&json!({ "count": 1, "age_seconds": 7200 })).remove(0);
    let moved = bench.post(&format!("sandbox/{old}/ttl/5")).expect(201);
    let left = at(&moved, "autoDestroyAt").duration_since(jiff::Timestamp::now());
    assert!((290..=300).contains(&left.as_secs()), "{left:?}");
}
