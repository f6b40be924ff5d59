//! What will not go: which failures quarantine, which are left to the next round.

use creel_core::reap::Outcome;
use creel_core::scope::{Held, ScopeError, Supervisor};
use creel_ledger::{Ledger, OwnerRecord, Record, RecordFilter, StateName};
use creel_model::labels;
use creel_model::provider::{Kind, Marks, Provider};
use creel_sanitise::Masked;
use serde_json::json;

use crate::bench::{Bench, sandbox};

async fn only_record(ledger: &Ledger) -> Record {
    ledger.records(&RecordFilter::open()).await.unwrap().remove(0)
}

/// Takes a sandbox and gives it back; returns why that failed.
async fn fail_to_release(supervisor: &Supervisor, held: Held) -> String {
    match supervisor.release(held).await.unwrap_err() {
        ScopeError::NotReleased { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_fault_that_outlasts_all_retries_is_left_to_the_next_round() {
    for fault in [
        json!({"at": "delete", "fault": "status", "status": 503}),
        json!({"at": "delete", "fault": "cut_before"}),
        json!({"at": "delete", "fault": "status", "status": 429,
            "headers": {"Retry-After-sandbox-lifecycle": "1"}}),
    ] {
        let bench = Bench::start().await;
        let (supervisor, ledger, _home) = bench.supervisor().await;
        let held = supervisor.create(sandbox()).await.unwrap();
        bench.fault(fault.clone()).await;
        fail_to_release(&supervisor, held).await;
        assert_eq!(only_record(&ledger).await.state.name(), StateName::Releasing, "{fault}");
        let status = supervisor.release_all().await.unwrap();
        assert!(!status.is_settled() && !status.is_final(), "{fault}: {status:?}");
        assert_eq!(status.items[0].result, Outcome::Failed, "{fault}");
        bench.every_fault_struck().await;

        let status = supervisor.release_all().await.unwrap();
        assert_eq!((status.released(), status.is_final()), (1, true), "{fault}: {status:?}");
        assert!(ledger.records(&RecordFilter::open()).await.unwrap().is_empty());
        bench.stop().await;
    }
}

#[tokio::test]
async fn a_refusal_for_good_is_quarantined_and_not_tried_again() {
    let bench = Bench::start().await;
    let (supervisor, ledger, _home) = bench.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    bench.permit(&["write:sandboxes"]).await;
    let reason = fail_to_release(&supervisor, held).await;
    let record = only_record(&ledger).await;
    assert_eq!(record.state.name(), StateName::Quarantined);
    assert_eq!(record.state.reason().map(Masked::as_str), Some(reason.as_str()));
    let deletes = bench.requests("DELETE /sandbox/{s}").await;
    let status = supervisor.release_all().await.unwrap();
    assert_eq!((status.quarantined, status.items.len()), (1, 0));
    assert_eq!(bench.requests("DELETE /sandbox/{s}").await, deletes);
    bench.stop().await;
}

#[tokio::test]
async fn a_sandbox_stuck_in_its_removal_is_quarantined_until_it_is_gone() {
    let bench = Bench::start().await;
    let (supervisor, ledger, _home) = bench.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    let id = held.id.clone();
    bench.fault(json!({"at": "delete", "fault": "stuck_destroying", "seconds": 7})).await;
    let reason = fail_to_release(&supervisor, held).await;
    assert!(reason.contains("stuck in destroying for 3s"), "{reason}");
    assert_eq!(only_record(&ledger).await.state.object(), Some(id.as_str()));

    let me = OwnerRecord::this_process("test").unwrap();
    let reconciler = bench.reconciler(&ledger, me);
    let status = reconciler.round().await.unwrap();
    assert_eq!((status.quarantined, status.left_quarantine), (1, 0), "it is still there");
    while bench.there().await.contains(&id) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let status = reconciler.round().await.unwrap();
    assert_eq!((status.quarantined, status.left_quarantine), (0, 1));
    assert!(ledger.records(&RecordFilter::open()).await.unwrap().is_empty());
    assert_eq!(bench.requests("DELETE /sandbox/{s}").await, 1, "looking orders nothing");
    bench.stop().await;
}

#[tokio::test]
async fn what_only_a_list_shows_after_a_delete_is_not_found() {
    let bench = Bench::start().await;
    let (supervisor, _ledger, _home) = bench.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    let marks = Marks { kind: Kind::Sandbox, resource: held.resource, name: held.name.clone() };
    assert_eq!(bench.provider.find(&marks).await.unwrap().len(), 1);
    bench.fault(json!({"at": "delete", "fault": "flap", "seconds": 4})).await;
    supervisor.release(held).await.unwrap();
    bench.every_fault_struck().await;
    // The list forgets it first, then shows it as it was.
    let is_shown = async || {
        let rows = bench.list().await;
        rows.iter().any(|row| labels::claimed_resource(&row.labels) == Some(marks.resource))
    };
    while !is_shown().await {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let found = bench.provider.find(&marks).await.unwrap();
    assert!(is_shown().await, "the list told the truth too soon");
    assert!(found.is_empty(), "{found:?}");
    bench.stop().await;
}
