//! Rate limits: the server's counters prove that they are respected.

use std::time::{Duration, Instant};

use creel_core::reap::{Outcome, ReapOptions};
use creel_daytona_server::{RateLimits, Settings};
use creel_model::labels::PROTECT;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::{DaytonaFixture, options};

/// Starts a server that accepts this many deletes per window.
async fn fixture_with_limit(deletes: u32, window: Duration) -> DaytonaFixture {
    let mut settings = Settings::hollow();
    settings.rate_limits =
        RateLimits { sandbox_lifecycle: Some(deletes), window, ..RateLimits::default() };
    DaytonaFixture::with(settings).await
}

#[tokio::test]
async fn after_a_refusal_nothing_is_sent_before_its_time() {
    let fixture = DaytonaFixture::start().await;
    let ids = fixture.seed(json!({"count": 10})).await;
    fixture
        .fault(json!({"at": "delete", "fault": "status", "status": 429, "count": 1,
            "headers": {"Retry-After-sandbox-lifecycle": "4"}}))
        .await;
    let start = Instant::now();
    let first = fixture.provider.api().delete(&ids[0]).await.unwrap_err();
    assert_eq!(first.retry_after, Some(Duration::from_secs(4)));
    let others = ids.iter().map(|id| fixture.provider.api().delete(id));
    let watch = async {
        tokio::time::sleep(Duration::from_millis(3500)).await;
        fixture.requests("DELETE /sandbox/{s}").await
    };
    let (deleted, sent_early) = tokio::join!(futures::future::join_all(others), watch);
    assert_eq!(sent_early, 1, "something was sent before its time");
    assert!(deleted.iter().all(Result::is_ok));
    assert!(start.elapsed() >= Duration::from_secs(4));
    assert_eq!(fixture.requests("DELETE /sandbox/{s}").await, 11);
    fixture.stop().await;
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
    let fixture = DaytonaFixture::with(settings).await;
    fixture.seed(json!({"count": 300, "state": "stopped"})).await;
    let start = Instant::now();
    let report = fixture.cleanup().release_stopped().await.unwrap();
    let elapsed = start.elapsed();
    assert_eq!(
        report.count(Outcome::Gone),
        300,
        "{:?}",
        report.items.iter().find(|item| item.result != Outcome::Gone)
    );
    let counts = fixture.counts().await;
    let refused: u64 = counts["by_status"]["429"].as_u64().unwrap_or(0);
    assert_eq!(refused, 0, "refusals in {elapsed:?}: {counts}");
    assert!(elapsed < Duration::from_secs(30), "{elapsed:?}");
    let per_item = counts["total"].as_u64().unwrap() as f64 / 300.0;
    assert!(per_item <= 4.0, "{per_item} requests for each");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_releases_start_than_can_be_checked() {
    let mut settings = Settings::hollow();
    settings.rate_limits = RateLimits {
        authenticated: Some(60),
        window: Duration::from_secs(2),
        ..RateLimits::default()
    };
    let fixture = DaytonaFixture::with(settings).await;
    fixture.seed(json!({"count": 100, "state": "stopped"})).await;
    let report = fixture.cleanup().release_stopped().await.unwrap();
    assert_eq!(report.count(Outcome::Gone), 100);
    let counts = fixture.counts().await;
    assert_eq!(counts["by_status"].get("429"), None, "{counts}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_release_is_inspected_when_its_turn_comes() {
    let fixture = fixture_with_limit(8, Duration::from_secs(4)).await;
    fixture.seed(json!({"count": 12, "state": "stopped"})).await;
    let other = fixture.another();
    let protect = async {
        // Half of the window is used up by now, and the rest is granted one by one.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let waiting = fixture.list().await.into_iter().filter(|seen| seen.state == "stopped");
        // A plan is sorted by name.
        let last = waiting.max_by_key(|seen| seen.name.clone()).expect("most wait").id;
        let labels = [(PROTECT.to_owned(), "yes".to_owned())].into();
        other.api().set_labels(&last, &labels).await.unwrap();
        last
    };
    let cleanup = fixture.cleanup();
    let (report, protected) = tokio::join!(cleanup.release_stopped(), protect);
    let report = report.unwrap();
    assert_eq!(report.count(Outcome::Gone), 11);
    let spared = report.items.iter().find(|item| item.result == Outcome::Spared).unwrap();
    assert_eq!(spared.id, protected);
    assert_eq!(fixture.list().await.len(), 1);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_does_not_wait_for_queued_releases() {
    let fixture = fixture_with_limit(8, Duration::from_secs(600)).await;
    fixture.seed(json!({"count": 50, "state": "stopped"})).await;
    let cancel = CancellationToken::new();
    let cleanup =
        fixture.cleanup().with_options(ReapOptions { cancel: cancel.clone(), ..options() });
    let start = Instant::now();
    let interrupt = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    };
    let (report, ()) = tokio::join!(cleanup.release_stopped(), interrupt);
    let report = report.unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let gone = report.count(Outcome::Gone);
    assert!((1..=8).contains(&gone), "{gone}");
    assert_eq!(report.count(Outcome::Spared), 50 - gone);
    assert_eq!(fixture.list().await.len(), 50 - gone);
    fixture.stop().await;
}
