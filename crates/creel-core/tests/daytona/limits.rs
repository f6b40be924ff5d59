//! Rate limits: what the server counts proves that they are honoured.

use std::time::{Duration, Instant};

use creel_core::reap::Outcome;
use creel_daytona_server::{RateLimits, Settings};
use serde_json::json;

use crate::bench::Bench;

#[tokio::test]
async fn after_a_refusal_nothing_is_sent_before_its_time() {
    let bench = Bench::start().await;
    let ids = bench.seed(json!({"count": 10})).await;
    bench
        .fault(json!({"at": "delete", "fault": "status", "status": 429, "count": 1,
            "headers": {"Retry-After-sandbox-lifecycle": "4"}}))
        .await;
    let start = Instant::now();
    let first = bench.provider.wire().delete(&ids[0]).await.unwrap_err();
    assert_eq!(first.retry_after, Some(Duration::from_secs(4)));
    let others = ids.iter().map(|id| bench.provider.wire().delete(id));
    let watch = async {
        tokio::time::sleep(Duration::from_millis(3500)).await;
        bench.requests("DELETE /sandbox/{s}").await
    };
    let (deleted, sent_early) = tokio::join!(futures::future::join_all(others), watch);
    assert_eq!(sent_early, 1, "something was sent before its time");
    assert!(deleted.iter().all(Result::is_ok));
    assert!(start.elapsed() >= Duration::from_secs(4));
    assert_eq!(bench.requests("DELETE /sandbox/{s}").await, 11);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_spread_instead_of_overdrawn() {
    let mut settings = Settings::hollow();
    settings.rate_limits = RateLimits {
        authenticated: Some(400),
        sandbox_lifecycle: Some(100),
        window: Duration::from_secs(5),
        ..RateLimits::default()
    };
    let bench = Bench::with(settings).await;
    bench.seed(json!({"count": 300, "state": "stopped"})).await;
    let start = Instant::now();
    let report = bench.cleanup().release_stopped().await.unwrap();
    let took = start.elapsed();
    assert_eq!(
        report.count(Outcome::Gone),
        300,
        "{:?}",
        report.items.iter().find(|item| item.result != Outcome::Gone)
    );
    let counts = bench.counts().await;
    let refused: u64 = counts["by_status"]["429"].as_u64().unwrap_or(0);
    assert!(refused <= 4, "{refused} refusals in {took:?}: {counts}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    let per_item = counts["total"].as_u64().unwrap() as f64 / 300.0;
    assert!(per_item <= 4.0, "{per_item} requests for each");
    bench.stop().await;
}
