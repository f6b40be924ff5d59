//! Releases under every fault: what is called gone is gone.

use std::collections::BTreeSet;

use creel_core::reap::Outcome;
use creel_model::provider::{ErrorClass, Kind, Provider};
use serde_json::json;

use crate::bench::Bench;

/// How many sandboxes are released under faults.
const RELEASES: usize = 1000;

#[tokio::test]
async fn faults_that_pass_do_not_stop_a_release() {
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
        let bench = Bench::start().await;
        let id = bench.one().await;
        bench.fault(fault.clone()).await;
        let report = bench.release(&id).await;
        assert_eq!(report.result, Outcome::Gone, "{fault}: {report:?}");
        bench.every_fault_struck().await;
        assert!(bench.inspect(&id).await.is_none(), "{fault}");
        bench.stop().await;
    }
}

#[tokio::test]
async fn a_delete_is_requested_once() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    bench.fault(json!({"at": "delete", "fault": "cut_after", "count": 1})).await;
    assert_eq!(bench.release(&id).await.result, Outcome::Gone);
    assert_eq!(bench.requests("DELETE /sandbox/{s}").await, 1);
    bench.stop().await;
}

#[tokio::test]
async fn a_destroy_that_does_not_end_is_accepted_and_not_gone() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    bench.fault(json!({"at": "delete", "fault": "stuck_destroying"})).await;
    let report = bench.release(&id).await;
    assert_eq!(report.result, Outcome::Accepted, "{report:?}");
    assert_eq!(bench.requests("DELETE /sandbox/{s}").await, 1);
    assert_eq!(bench.inspect(&id).await.unwrap().state, "destroying");
    bench.stop().await;
}

#[tokio::test]
async fn a_hidden_record_does_not_count_as_absence() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    bench.fault(json!({"at": "delete", "fault": "errored_deleted"})).await;
    let report = bench.release(&id).await;
    assert_eq!(report.result, Outcome::Accepted, "{report:?}");
    let hidden = bench.inspect(&id).await.expect("it is hidden, not gone");
    assert_eq!(hidden.state, "error");
    assert!(hidden.generation.ends_with("errored-deleted"), "{}", hidden.generation);
    let listed = bench.list().await;
    assert_eq!(listed.len(), 1, "it is still there, and costs money");
    assert!(listed[0].retained.is_some(), "{listed:?}");
    bench.stop().await;
}

#[tokio::test]
async fn hidden_records_are_found_in_bulk_too() {
    let bench = Bench::start().await;
    let ids = bench.seed(json!({"count": 20})).await;
    bench.fault(json!({"at": "delete", "fault": "errored_deleted", "count": 10})).await;
    let releases = ids.iter().map(|id| bench.release(id));
    let reports = futures::future::join_all(releases).await;
    let gone: Vec<_> = reports.iter().filter(|one| one.result == Outcome::Gone).collect();
    assert_eq!(gone.len(), 10);
    for report in gone {
        assert!(bench.inspect(&report.id).await.is_none());
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_sandbox_stuck_in_a_transition_fails_with_its_state() {
    let bench = Bench::start().await;
    let id = bench.seed(json!({"count": 1, "state": "starting"})).await.remove(0);
    let report = bench.release(&id).await;
    assert_eq!(report.result, Outcome::Failed, "{report:?}");
    assert_eq!(report.class, Some(ErrorClass::InProgress));
    assert!(report.reason.unwrap().starts_with("stuck in starting for 3s"), "{}", report.id);
    assert!(bench.requests("DELETE /sandbox/{s}").await <= 4);
    bench.stop().await;
}

#[tokio::test]
async fn one_that_is_still_starting_goes_when_it_has_started() {
    let mut settings = creel_daytona_server::Settings::hollow();
    settings.delays.start = std::time::Duration::from_secs(1);
    let bench = Bench::with(settings).await;
    let id = bench.seed(json!({"count": 1, "state": "stopped"})).await.remove(0);
    let other = bench.another();
    let (_, report) = tokio::join!(other.api().start(&id), async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        bench.release(&id).await
    });
    assert_eq!(report.result, Outcome::Gone, "{report:?}");
    bench.stop().await;
}

#[tokio::test]
async fn what_may_not_be_deleted_is_stopped_and_reported() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    bench.permit(&["write:sandboxes"]).await;
    let report = bench.release(&id).await;
    assert_eq!(report.class, Some(ErrorClass::Denied));
    let reason = report.reason.unwrap();
    assert!(reason.starts_with("delete is denied; stopped instead"), "{reason}");
    let state = bench.inspect(&id).await.unwrap().state;
    assert!(matches!(state.as_str(), "stopping" | "stopped"), "{state}");
    bench.stop().await;
}

#[tokio::test]
async fn a_stop_stops_and_one_at_rest_stays() {
    let bench = Bench::start().await;
    let id = bench.one().await;
    let patience = std::time::Duration::from_secs(5);
    for _ in 0..2 {
        bench.provider.stop(Kind::Sandbox, &id, patience).await.unwrap();
        assert_eq!(bench.inspect(&id).await.unwrap().state, "stopped");
    }
    assert_eq!(bench.cleanup().release_stopped().await.unwrap().count(Outcome::Gone), 1);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_thousand_releases_under_faults_few_fail_and_none_lies() {
    let bench = Bench::start().await;
    let ours = bench.seed(json!({"count": RELEASES, "state": "stopped"})).await;
    let decoys = bench.seed(json!({"count": 5})).await;
    // One of these strikes first, so together they strike one request in ten.
    for (fault, status) in [("status", 500), ("cut_before", 0), ("cut_after", 0), ("half_body", 0)]
    {
        bench.fault(json!({"fault": fault, "status": status, "probability": 0.026})).await;
    }
    let started_at = std::time::Instant::now();
    let report = bench.cleanup().release_stopped().await.unwrap();
    let elapsed = started_at.elapsed();
    let (counts, struck) = (bench.counts().await, bench.struck().await);
    bench.every_fault_struck().await;

    let there = bench.there().await;
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
        "{RELEASES} releases: {failed} failed, {} called gone and there; {} requests, {struck} \
         struck by a fault, {:.1} s",
        lies.len(),
        counts["total"],
        elapsed.as_secs_f64()
    );
    assert!(failed * 100 < RELEASES, "{failed} of {RELEASES} failed");
    let share = struck as f64 / counts["total"].as_f64().unwrap();
    assert!((0.08..0.12).contains(&share), "{share} of the requests were struck");
    assert!(decoys.iter().all(|id| there.contains(id)));
    bench.stop().await;
}
