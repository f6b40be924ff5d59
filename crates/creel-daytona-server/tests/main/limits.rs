//! Rate limits and their headers.

use serde_json::{Value, json};

use crate::client::{Request, send};
use crate::fixture::ServerFixture;

#[test]
fn a_success_reports_the_remaining_budget_and_a_refusal_only_the_retry_time() {
    let fixture = ServerFixture::hollow(|settings| settings.rate_limits.authenticated = Some(2));
    for remaining in ["1", "0"] {
        let response = fixture.get("sandbox");
        assert_eq!(response.headers["x-ratelimit-limit-authenticated"], "2");
        assert_eq!(response.headers["x-ratelimit-remaining-authenticated"], remaining);
        let reset: u64 =
            response.headers["x-ratelimit-reset-authenticated"].parse().expect("it is a number");
        assert!((1..=60).contains(&reset));
        response.expect(200);
    }
    let refused = fixture.get("sandbox");
    let wait: u64 = refused.headers["retry-after-authenticated"].parse().expect("it is a number");
    assert!((1..=60).contains(&wait));
    let others =
        ["retry-after", "x-ratelimit-limit-authenticated", "x-ratelimit-remaining-authenticated"];
    assert!(others.iter().all(|name| !refused.headers.contains_key(*name)));
    refused.expect(429);
    let counts = fixture.admin("GET", "requests", &Value::Null);
    assert_eq!(counts["throttled"]["authenticated"], 1);
}

#[test]
fn each_throttler_has_its_own_window() {
    let fixture = ServerFixture::hollow(|settings| {
        settings.rate_limits.sandbox_create = Some(1);
        settings.rate_limits.sandbox_lifecycle = Some(1);
        settings.rate_limits.authenticated = Some(1);
    });
    let first = fixture.create(&json!({}));
    let refused = fixture.send("POST", "sandbox", &json!({}));
    assert!(refused.headers.contains_key("retry-after-sandbox-create"));
    refused.expect(429);
    fixture.post(&format!("sandbox/{first}/stop")).expect(200);
    let refused = fixture.send("DELETE", &format!("sandbox/{first}"), &Value::Null);
    assert!(refused.headers.contains_key("retry-after-sandbox-lifecycle"));
    refused.expect(429);
    // Creates and lifecycle calls do not count against the general window.
    fixture.get("sandbox").expect(200);
    fixture.get("sandbox").expect(429);
    let config = fixture.get("config").expect(200);
    assert_eq!(config["rateLimit"]["sandboxLifecycle"], json!({ "ttl": 60, "limit": 1 }));
}

#[test]
fn wrong_keys_lock_good_ones_out() {
    let fixture = ServerFixture::hollow(|settings| settings.rate_limits.failed_auth = Some(2));
    let url = format!("{}/sandbox", fixture.running().url());
    let wrong = [("Authorization", "Bearer wrong")];
    for _ in 0..2 {
        let request = Request { method: "GET", url: &url, headers: &wrong, body: b"" };
        send(&request).expect("the server answers").expect(401);
    }
    let refused = fixture.get("sandbox");
    assert!(refused.headers.contains_key("retry-after"));
    refused.expect(429);
}
