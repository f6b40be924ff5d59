//! Creates, and what failed ones leave behind: nothing.

use std::time::Duration;

use creel_core::scope::ScopeError;
use creel_daytona_server::{ApiVersion, Settings};
use creel_ledger::RecordFilter;
use creel_model::labels;
use creel_model::provider::Kind;
use futures::FutureExt;
use serde_json::json;

use crate::fixture::{DaytonaFixture, sandbox};

#[tokio::test]
async fn a_scope_releases_its_sandbox() {
    // Only a newer service supports a time to live.
    let settings = Settings { api: ApiVersion::V0_226, ..Settings::hollow() };
    let fixture = DaytonaFixture::with(settings).await;
    let (supervisor, ledger, _home) = fixture.supervisor().await;
    let other = fixture.another();
    let scope = supervisor
        .scope(sandbox(), |held| async move { other.api().get(&held.id).await.unwrap() }.boxed());
    let seen = scope.await.unwrap();
    assert_eq!(seen.state.name(), "started");
    assert!(labels::claimed_resource(&seen.labels).is_some());
    // An hour of lease and five minutes of margin.
    assert_eq!(seen.auto_stop_minutes, Some(65));
    let left = seen.auto_destroy_at.unwrap().duration_since(seen.created_at.unwrap());
    assert_eq!(left.as_secs(), 65 * 60);
    assert!(fixture.list().await.is_empty());
    assert!(ledger.records(&RecordFilter::open()).await.unwrap().is_empty());
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_exists_is_adopted_by_its_id() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    let id = fixture.one().await;
    let adopted = supervisor.scope_adopted(creel_daytona::NAME, Kind::Sandbox, &id, |held| {
        let id = held.id.clone();
        async move { id }.boxed()
    });
    assert_eq!(adopted.await.unwrap(), id);
    assert!(fixture.inspect(&id).await.is_none());
    fixture.stop().await;
}

#[tokio::test]
async fn a_lost_create_response_is_recovered_by_name() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    for fault in ["cut_after", "half_body"] {
        fixture.fault(json!({"at": "create", "fault": fault, "count": 1})).await;
        let held = supervisor.create(sandbox()).await.unwrap();
        fixture.assert_every_fault_fired().await;
        assert_eq!(fixture.list().await.len(), 1, "{fault}");
        assert_eq!(
            fixture.requests("POST /sandbox").await,
            if fault == "cut_after" { 1 } else { 2 }
        );
        supervisor.release(held).await.unwrap();
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing() {
    for fault in [
        json!({"at": "create", "fault": "create_fails_after_alloc", "count": 1}),
        json!({"at": "create", "fault": "cut_before", "count": 1}),
        json!({"at": "create", "fault": "html", "status": 200, "count": 1}),
        json!({"at": "create", "fault": "status", "status": 500, "count": 1}),
        json!({"at": "create", "fault": "status", "status": 400, "count": 1,
            "message": "Total CPU limit exceeded. Maximum allowed: 10"}),
        json!({"at": "create", "fault": "stuck_starting", "count": 1}),
    ] {
        let fixture = if fault["fault"] == "stuck_starting" {
            let mut settings = creel_daytona_server::Settings::hollow();
            settings.delays.answer = Duration::from_millis(100);
            DaytonaFixture::with(settings).await
        } else {
            DaytonaFixture::start().await
        };
        let (supervisor, _ledger, _home) = fixture.supervisor().await;
        fixture.fault(fault.clone()).await;
        let error = supervisor.create(sandbox()).await.expect_err("the fault makes it fail");
        fixture.assert_every_fault_fired().await;
        assert_eq!(fixture.requests("POST /sandbox").await, 1, "{fault} was retried: {error}");
        let left = fixture.list().await;
        if fault["fault"] == "stuck_starting" {
            // It cannot be deleted while it starts, so it stays on record.
            assert_eq!(left.len(), 1);
        } else {
            assert!(left.is_empty(), "{fault} left {left:?}");
        }
        fixture.stop().await;
    }
}

#[tokio::test]
async fn a_key_without_delete_permission_creates_nothing() {
    let fixture = DaytonaFixture::start().await;
    fixture.permit(&["write:sandboxes"]).await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    let error = supervisor.create(sandbox()).await.unwrap_err().to_string();
    assert!(error.contains("delete:sandboxes"), "{error}");
    assert_eq!(fixture.requests("POST /sandbox").await, 0);
    assert_eq!(fixture.provider.key_rights().await.unwrap().missing(), ["delete:sandboxes"]);
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_is_released_when_its_work_times_out() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    let limit = Duration::from_millis(50);
    let scope =
        supervisor.scope_with_limit(sandbox(), limit, |_| std::future::pending::<()>().boxed());
    let ended = scope.await;
    assert!(matches!(ended, Err(ScopeError::TimedOut { .. })), "{ended:?}");
    assert!(fixture.list().await.is_empty());
    fixture.stop().await;
}
