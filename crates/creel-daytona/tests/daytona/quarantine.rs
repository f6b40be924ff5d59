//! Failed releases: which failures quarantine, and which are left to the next round.

use creel_core::reap::Outcome;
use creel_core::scope::{Held, ScopeError, Supervisor};
use creel_ledger::{Ledger, OwnerRecord, Record, RecordFilter, StateName};
use creel_model::labels;
use creel_model::provider::{Kind, Marks, Provider};
use creel_sanitise::Masked;
use serde_json::json;

use crate::fixture::{DaytonaFixture, sandbox};

async fn only_record(ledger: &Ledger) -> Record {
    ledger.records(&RecordFilter::open()).await.unwrap().remove(0)
}

/// Acquires a sandbox and releases it. Returns why the release failed.
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
        let fixture = DaytonaFixture::start().await;
        let (supervisor, ledger, _home) = fixture.supervisor().await;
        let held = supervisor.create(sandbox()).await.unwrap();
        fixture.fault(fault.clone()).await;
        fail_to_release(&supervisor, held).await;
        assert_eq!(only_record(&ledger).await.state.name(), StateName::Releasing, "{fault}");
        let status = supervisor.release_all().await.unwrap();
        assert!(!status.is_settled() && !status.is_final(), "{fault}: {status:?}");
        assert_eq!(status.items[0].result, Outcome::Failed, "{fault}");
        fixture.assert_every_fault_fired().await;

        let status = supervisor.release_all().await.unwrap();
        assert_eq!((status.released(), status.is_final()), (1, true), "{fault}: {status:?}");
        assert!(ledger.records(&RecordFilter::open()).await.unwrap().is_empty());
        fixture.stop().await;
    }
}

#[tokio::test]
async fn a_permanent_refusal_is_quarantined_and_not_retried() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, ledger, _home) = fixture.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    fixture.permit(&["write:sandboxes"]).await;
    let reason = fail_to_release(&supervisor, held).await;
    let record = only_record(&ledger).await;
    assert_eq!(record.state.name(), StateName::Quarantined);
    assert_eq!(record.state.reason().map(Masked::as_str), Some(reason.as_str()));
    let deletes = fixture.requests("DELETE /sandbox/{s}").await;
    let status = supervisor.release_all().await.unwrap();
    assert_eq!((status.quarantined, status.items.len()), (1, 0));
    assert_eq!(fixture.requests("DELETE /sandbox/{s}").await, deletes);
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_stuck_in_removal_is_quarantined_until_it_is_gone() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, ledger, _home) = fixture.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    let id = held.id.clone();
    fixture.fault(json!({"at": "delete", "fault": "stuck_destroying", "seconds": 7})).await;
    let reason = fail_to_release(&supervisor, held).await;
    assert!(reason.contains("stuck in destroying for 3s"), "{reason}");
    assert_eq!(only_record(&ledger).await.state.object(), Some(id.as_str()));

    let me = OwnerRecord::this_process("test").unwrap();
    let reconciler = fixture.reconciler(&ledger, me);
    let status = reconciler.round().await.unwrap();
    assert_eq!((status.quarantined, status.left_quarantine), (1, 0), "it is still there");
    while fixture.there().await.contains(&id) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let status = reconciler.round().await.unwrap();
    assert_eq!((status.quarantined, status.left_quarantine), (0, 1));
    assert!(ledger.records(&RecordFilter::open()).await.unwrap().is_empty());
    assert_eq!(fixture.requests("DELETE /sandbox/{s}").await, 1, "an inspection sends no delete");
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_only_a_list_shows_after_a_delete_is_not_found() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, _ledger, _home) = fixture.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    let marks = Marks { kind: Kind::Sandbox, resource: held.resource, name: held.name.clone() };
    assert_eq!(fixture.provider.find(&marks).await.unwrap().len(), 1);
    fixture.fault(json!({"at": "delete", "fault": "flap", "seconds": 4})).await;
    supervisor.release(held).await.unwrap();
    fixture.assert_every_fault_fired().await;
    // The list first omits the sandbox, then shows it in its earlier state.
    let is_shown = async || {
        let rows = fixture.list().await;
        rows.iter().any(|row| labels::claimed_resource(&row.labels) == Some(marks.resource))
    };
    while !is_shown().await {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let found = fixture.provider.find(&marks).await.unwrap();
    assert!(is_shown().await, "the list was correct too soon");
    assert!(found.is_empty(), "{found:?}");
    fixture.stop().await;
}
