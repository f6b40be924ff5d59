//! Releases under every fault: what is reported as gone is gone.

use std::collections::BTreeSet;

use creel_core::reap::Outcome;
use creel_model::provider::{ErrorClass, Kind, Provider};
use serde_json::json;

use crate::fixture::DaytonaFixture;

/// The number of sandboxes released under faults.
const RELEASES: usize = 1000;

#[tokio::test]
async fn transient_faults_do_not_stop_a_release() {
    for fault in [
        json!({"at": "delete", "fault": "cut_before", "count": 1}),
        json!({"at": "delete", "fault": "cut_after", "count": 1}),
        json!({"at": "delete", "fault": "half_body", "count": 1}),
        json!({"at": "delete", "fault": "status", "status": 502, "count": 2}),
        json!({"at": "delete", "fault": "flap", "count": 1}),
        json!({"at": "get", "fault": "half_body", "count": 2}),
        json!({"at": "get", "fault": "cut_before", "count": 2}),
        json!({"at": "get", "fault": "status", "status": 503, "count": 3}),
        json!({"at": "list", "fault": "status", "status": 500, "count": 2}),
    ] {
        let fixture = DaytonaFixture::start().await;
        let id = fixture.one().await;
        fixture.fault(fault.clone()).await;
        let report = fixture.release(&id).await;
        assert_eq!(report.result, Outcome::Gone, "{fault}: {report:?}");
        fixture.assert_every_fault_fired().await;
        assert!(fixture.inspect(&id).await.is_none(), "{fault}");
        fixture.stop().await;
    }
}

#[tokio::test]
async fn a_delete_is_requested_once() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    fixture.fault(json!({"at": "delete", "fault": "cut_after", "count": 1})).await;
    assert_eq!(fixture.release(&id).await.result, Outcome::Gone);
    assert_eq!(fixture.requests("DELETE /sandbox/{s}").await, 1);
    fixture.stop().await;
}

#[tokio::test]
async fn a_destroy_that_does_not_end_is_accepted_and_not_gone() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    fixture.fault(json!({"at": "delete", "fault": "stuck_destroying"})).await;
    let report = fixture.release(&id).await;
    assert_eq!(report.result, Outcome::Accepted, "{report:?}");
    assert_eq!(fixture.requests("DELETE /sandbox/{s}").await, 1);
    assert_eq!(fixture.inspect(&id).await.unwrap().state, "destroying");
    fixture.stop().await;
}

#[tokio::test]
async fn a_hidden_record_does_not_count_as_absence() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    fixture.fault(json!({"at": "delete", "fault": "errored_deleted"})).await;
    let report = fixture.release(&id).await;
    assert_eq!(report.result, Outcome::Accepted, "{report:?}");
    let hidden = fixture.inspect(&id).await.expect("it is hidden, not gone");
    assert_eq!(hidden.state, "error");
    assert!(hidden.generation.ends_with("errored-deleted"), "{}", hidden.generation);
    let listed = fixture.list().await;
    assert_eq!(listed.len(), 1, "it is still there, and costs money");
    assert!(listed[0].retained.is_some(), "{listed:?}");
    fixture.stop().await;
}

#[tokio::test]
async fn hidden_records_are_found_in_bulk_too() {
    let fixture = DaytonaFixture::start().await;
    let ids = fixture.seed(json!({"count": 20})).await;
    fixture.fault(json!({"at": "delete", "fault": "errored_deleted", "count": 10})).await;
    let releases = ids.iter().map(|id| fixture.release(id));
    let reports = futures::future::join_all(releases).await;
    let gone: Vec<_> = reports.iter().filter(|one| one.result == Outcome::Gone).collect();
    assert_eq!(gone.len(), 10);
    for report in gone {
        assert!(fixture.inspect(&report.id).await.is_none());
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_stuck_in_a_transition_fails_with_its_state() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.seed(json!({"count": 1, "state": "starting"})).await.remove(0);
    let report = fixture.release(&id).await;
    assert_eq!(report.result, Outcome::Failed, "{report:?}");
    assert_eq!(report.class, Some(ErrorClass::InProgress));
    assert!(report.reason.unwrap().starts_with("stuck in starting for 3s"), "{}", report.id);
    assert!(fixture.requests("DELETE /sandbox/{s}").await <= 4);
    fixture.stop().await;
}

#[tokio::test]
async fn a_starting_sandbox_is_released_once_it_has_started() {
    let mut settings = creel_daytona_server::Settings::hollow();
    settings.delays.start = std::time::Duration::from_secs(1);
    let fixture = DaytonaFixture::with(settings).await;
    let id = fixture.seed(json!({"count": 1, "state": "stopped"})).await.remove(0);
    let other = fixture.another();
    let (_, report) = tokio::join!(other.api().start(&id), async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        fixture.release(&id).await
    });
    assert_eq!(report.result, Outcome::Gone, "{report:?}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_may_not_be_deleted_is_stopped_and_reported() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    fixture.permit(&["write:sandboxes"]).await;
    let report = fixture.release(&id).await;
    assert_eq!(report.class, Some(ErrorClass::Denied));
    let reason = report.reason.unwrap();
    assert!(reason.starts_with("delete is denied; stopped instead"), "{reason}");
    let state = fixture.inspect(&id).await.unwrap().state;
    assert!(matches!(state.as_str(), "stopping" | "stopped"), "{state}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_running_sandbox_is_stopped_and_a_stopped_one_stays() {
    let fixture = DaytonaFixture::start().await;
    let id = fixture.one().await;
    let patience = std::time::Duration::from_secs(5);
    for _ in 0..2 {
        fixture.provider.stop(Kind::Sandbox, &id, patience).await.unwrap();
        assert_eq!(fixture.inspect(&id).await.unwrap().state, "stopped");
    }
    assert_eq!(fixture.cleanup().release_stopped().await.unwrap().count(Outcome::Gone), 1);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_thousand_releases_under_faults_few_fail_and_all_reports_are_correct() {
    let fixture = DaytonaFixture::start().await;
    let ours = fixture.seed(json!({"count": RELEASES, "state": "stopped"})).await;
    let decoys = fixture.seed(json!({"count": 5})).await;
    // Only the first matching fault fires, so together they affect one request in ten.
    for (fault, status) in [("status", 500), ("cut_before", 0), ("cut_after", 0), ("half_body", 0)]
    {
        fixture.fault(json!({"fault": fault, "status": status, "probability": 0.026})).await;
    }
    let started_at = std::time::Instant::now();
    let report = fixture.cleanup().release_stopped().await.unwrap();
    let elapsed = started_at.elapsed();
    let (counts, fired) = (fixture.counts().await, fixture.fired().await);
    fixture.assert_every_fault_fired().await;

    let there = fixture.there().await;
    let gone: BTreeSet<&String> = report
        .items
        .iter()
        .filter(|item| item.result == Outcome::Gone)
        .map(|item| &item.id)
        .collect();
    let lies: Vec<_> = gone.iter().filter(|id| there.contains(**id)).collect();
    assert!(lies.is_empty(), "called gone, and there: {lies:?}");
    assert_eq!(report.items.len(), RELEASES);
    let failed = ours.iter().filter(|id| !gone.contains(id)).count();
    println!(
        "{RELEASES} releases: {failed} failed, {} called gone and there; {} requests, {fired} \
         hit by a fault, {:.1} s",
        lies.len(),
        counts["total"],
        elapsed.as_secs_f64()
    );
    assert!(failed * 100 < RELEASES, "{failed} of {RELEASES} failed");
    let share = fired as f64 / counts["total"].as_f64().unwrap();
    assert!((0.08..0.12).contains(&share), "{share} of the requests were hit");
    assert!(decoys.iter().all(|id| there.contains(id)));
    fixture.stop().await;
}
