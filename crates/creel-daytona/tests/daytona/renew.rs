//! Renewals: the sandbox of a live owner stays, and that of a dead one ends by itself.

use std::time::Duration;

use creel_daytona_server::{ApiVersion, Settings};
use creel_model::provider::{Kind, Provider};
use jiff::Timestamp;

use crate::fixture::{DaytonaFixture, sandbox};

/// A lease of a second, which with its margin makes six minutes.
const MINUTES: i64 = 6;

/// A server with times to live.
fn newer() -> Settings {
    Settings { api: ApiVersion::V0_226, ..Settings::hollow() }
}

/// A server whose minutes are short, and which checks its timers often.
fn hurried() -> Settings {
    let mut settings = newer();
    settings.delays.minute = Duration::from_millis(500);
    settings.delays.timer_period = Duration::from_millis(20);
    settings
}

/// The lifetime of a sandbox on such a server without a renewal.
fn lifetime() -> Duration {
    hurried().delays.minute * u32::try_from(MINUTES).unwrap()
}

#[tokio::test]
async fn a_renewal_moves_the_time_to_live_and_counts_as_activity() {
    let fixture = DaytonaFixture::with(newer()).await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    let mut request = sandbox();
    request.lease = Duration::from_secs(1);
    let held = supervisor.create(request).await.unwrap();
    // Another process knows only the lifetime that the sandbox itself reports.
    for provider in [&*fixture.provider, &fixture.another()] {
        let before = fixture.provider.api().get(&held.id).await.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        let requested_at = Timestamp::now();
        provider.renew(Kind::Sandbox, &held.id).await.unwrap();
        let after = fixture.provider.api().get(&held.id).await.unwrap();
        assert!(after.last_activity_at > before.last_activity_at);
        let moved_to = after.auto_destroy_at.unwrap();
        let life = moved_to.duration_since(requested_at).as_millis();
        assert!((0..10_000).contains(&(life - i128::from(MINUTES) * 60_000)), "{life} ms");
        assert!(Some(moved_to) > before.auto_destroy_at, "the end was not moved");
    }
    assert_eq!(fixture.requests("POST /sandbox/{s}/last-activity").await, 2);
    assert_eq!(fixture.requests("POST /sandbox/{s}/ttl/{n}").await, 2);
    supervisor.release(held).await.unwrap();
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_without_a_limit_of_its_own_gets_none_from_a_renewal() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    fixture.another().renew(Kind::Sandbox, &id).await.unwrap();
    let seen = fixture.provider.api().get(&id).await.unwrap();
    assert_eq!(seen.auto_destroy_at, None);
    assert_eq!(fixture.requests("POST /sandbox/{s}/ttl/{n}").await, 0);
    fixture.stop().await;
}

#[tokio::test]
async fn a_renewed_sandbox_outlives_its_timers_and_an_abandoned_one_does_not() {
    let fixture = DaytonaFixture::with(hurried()).await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    let mut request = sandbox();
    request.lease = Duration::from_secs(1);
    let kept = supervisor.create(request.clone()).await.unwrap();
    // Not on this ledger, so that no process renews it.
    let (gone_owner, _other_ledger, _other_home) = fixture.supervisor().await;
    let abandoned = gone_owner.create(request).await.unwrap();
    let keep_alive = supervisor.keep_alive(lifetime() / 8);
    let started_at = std::time::Instant::now();
    let mut ended = None;
    while started_at.elapsed() < lifetime() * 2 {
        let there = fixture.there().await;
        assert!(there.contains(&kept.id), "ended after {:?}", started_at.elapsed());
        if !there.contains(&abandoned.id) {
            ended.get_or_insert(started_at.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let state = fixture.provider.api().get(&kept.id).await.unwrap().state;
    assert_eq!(state.name(), "started", "activity keeps it from stopping");
    let ended = ended.expect("no process renewed it");
    assert!(ended + Duration::from_millis(500) > lifetime(), "it ended after {ended:?}");
    keep_alive.abort();
    abandoned.forget();
    supervisor.release(kept).await.unwrap();
    fixture.stop().await;
}

#[tokio::test]
async fn renewing_an_absent_sandbox_fails_with_gone() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    fixture.release(&id).await;
    let error = fixture.provider.renew(Kind::Sandbox, &id).await.unwrap_err();
    assert_eq!(error.class, creel_model::provider::ErrorClass::Gone, "{error}");
    fixture.stop().await;
}
