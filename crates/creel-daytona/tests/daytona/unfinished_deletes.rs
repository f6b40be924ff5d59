//! Deletes that the service accepts but does not carry out: what is reported, and when.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use creel_core::pipeline::{Pipeline, PlannedRelease};
use creel_core::plan::{Binding, PlanItem};
use creel_core::reap::{ItemReport, Outcome, Report};
use creel_core::reconcile::{Reconciler, Status};
use creel_core::scope::ScopeError;
use creel_daytona_server::Settings;
use creel_ledger::{Ledger, OwnerRecord, RecordFilter, StateName};
use creel_model::clock::{Clock, ManualClock, SystemClock};
use creel_model::provider::{Kind, Provider, Providers};
use jiff::Timestamp;
use serde_json::json;

use crate::fixture::{DaytonaFixture, options, sandbox};

const REASON: &str = "the runner is lost";

/// Sweeps all sandboxes in error, as a command with a ledger does.
async fn sweep(fixture: &DaytonaFixture, ledger: &Ledger) -> Report {
    let provider: Arc<dyn Provider> = fixture.provider.clone();
    let failed = |state: &str| matches!(state, "error" | "build_failed");
    let seen = fixture.list().await.into_iter().filter(|seen| failed(&seen.state));
    let item = |seen| PlanItem {
        seen,
        rule: "test".to_owned(),
        resource: None,
        binding: Binding::Identity,
        evidence: None,
    };
    let items: Vec<PlanItem> = seen.map(item).collect();
    let listed = items.len();
    let planned = PlannedRelease::of_items(items, listed);
    let pipeline = Pipeline::new(Providers::new(vec![provider]), Some(ledger.clone()));
    pipeline.with_options(options()).release(planned.uncapped(), &()).await
}

async fn round(fixture: &DaytonaFixture, ledger: &Ledger) -> Status {
    let me = OwnerRecord::this_process("test").unwrap();
    fixture.reconciler(ledger, me).round().await.unwrap()
}

fn days_from_now(until: Timestamp) -> i64 {
    let left = until.duration_since(Timestamp::now());
    (left.as_secs() + 3600) / (24 * 3600)
}

async fn open(home: &Path) -> Ledger {
    Ledger::open(home).await.unwrap()
}

fn only(report: Report) -> ItemReport {
    let [item] = <[ItemReport; 1]>::try_from(report.items).unwrap();
    item
}

#[tokio::test]
async fn a_sandbox_in_error_is_kept_with_the_services_reason_and_date() {
    let fixture = DaytonaFixture::start().await;
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path()).await;
    for (state, days) in [("error", 7), ("build_failed", 1)] {
        let seed = json!({"count": 1, "state": state, "error_reason": REASON});
        let id = fixture.seed(seed).await.remove(0);
        let report = sweep(&fixture, &ledger).await;
        let item = report.items.iter().find(|item| item.id == id).unwrap();
        assert_eq!((item.result, item.is_failure()), (Outcome::Accepted, true), "{item:?}");
        assert_eq!(days_from_now(item.kept_until.unwrap()), days, "{item:?}");
        let reason = item.reason.as_deref().unwrap();
        assert!(reason.starts_with("accepted, kept by the service until 20"), "{reason}");
        assert!(reason.ends_with(&format!(": {REASON}")), "{reason}");
        assert_eq!(json!(item)["kept_until"], json!(item.kept_until));
        assert!(fixture.there().await.contains(&id), "it is there all the same");
    }
    assert_eq!(fixture.list().await.len(), 2, "and it is listed");
    fixture.stop().await;
}

#[tokio::test]
async fn a_kept_sandbox_fails_once_then_is_listed_and_fails_again_after_its_date() {
    let fixture = DaytonaFixture::start().await;
    let home = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(SystemClock.now().wall_ms));
    let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
    let ledger = Ledger::open_with_clock(home.path(), shared).await.unwrap();
    let id = fixture.seed(json!({"count": 1, "state": "error"})).await.remove(0);
    let first = only(sweep(&fixture, &ledger).await);
    assert!(first.is_failure() && !first.is_settled(), "{first:?}");

    let again = only(sweep(&fixture, &ledger).await);
    assert_eq!((again.result, again.is_failure()), (Outcome::Accepted, false), "{again:?}");
    assert_eq!(again.kept_until, first.kept_until);
    let status = round(&fixture, &ledger).await;
    assert!(status.is_settled(), "{status:?}");
    assert_eq!((status.unfinished.len(), status.overdue), (1, 0), "listed all the same");
    assert_eq!((&status.unfinished[0].id, status.quarantined), (&id, 0));
    // A state directory without access also waits for the date.
    let me = OwnerRecord::this_process("test").unwrap();
    let alone = Reconciler::new(ledger.clone(), Providers::default(), me);
    let status = alone.round().await.unwrap();
    assert_eq!((status.unreachable.len(), status.unfinished.len()), (0, 1), "{status:?}");

    clock.advance(Duration::from_secs(8 * 24 * 3600));
    assert!(only(sweep(&fixture, &ledger).await).is_failure(), "its date has passed");
    let status = round(&fixture, &ledger).await;
    assert_eq!((status.overdue, status.is_settled()), (1, false), "{status:?}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_the_service_purged_is_forgotten() {
    let mut settings = Settings::hollow();
    settings.delays.minute = Duration::from_millis(6);
    settings.delays.timer_period = Duration::from_millis(50);
    let fixture = DaytonaFixture::with(settings).await;
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path()).await;
    let id = fixture.seed(json!({"count": 1, "state": "build_failed"})).await.remove(0);
    assert!(only(sweep(&fixture, &ledger).await).is_failure());
    assert_eq!(ledger.unfinished_deletes().await.unwrap().len(), 1);
    // A day of this server takes nine seconds.
    while fixture.there().await.contains(&id) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = round(&fixture, &ledger).await;
    assert_eq!((status.converged, status.unfinished.len()), (1, 0), "{status:?}");
    assert!(ledger.unfinished_deletes().await.unwrap().is_empty());
    fixture.stop().await;
}

#[tokio::test]
async fn a_foreign_delete_that_gets_stuck_is_remembered_until_it_has_finished() {
    let fixture = DaytonaFixture::start().await;
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path()).await;
    let id =
        fixture.seed(json!({"count": 1, "state": "error", "recoverable": true})).await.remove(0);
    let fault = json!({"at": "delete", "fault": "stuck_destroying", "seconds": 7});
    fixture.fault(fault).await;
    let item = only(sweep(&fixture, &ledger).await);
    assert_eq!((item.result, item.kept_until), (Outcome::Accepted, None), "{item:?}");
    let status = round(&fixture, &ledger).await;
    assert_eq!((status.overdue, status.is_settled()), (1, false), "no date to wait for");
    while fixture.there().await.contains(&id) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = round(&fixture, &ledger).await;
    assert_eq!((status.converged, status.is_settled()), (1, true), "{status:?}");
    fixture.stop().await;
}

#[tokio::test]
async fn our_own_kept_sandbox_is_quarantined_and_counted_once() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, ledger, _home) = fixture.supervisor().await;
    let held = supervisor.create(sandbox()).await.unwrap();
    let id = held.id.clone();
    fixture.fault(json!({"at": "delete", "fault": "errored_deleted"})).await;
    let ScopeError::NotReleased { reason, .. } = supervisor.release(held).await.unwrap_err() else {
        panic!("it is not released");
    };
    assert!(reason.contains("kept by the service until"), "{reason}");
    let open = ledger.records(&RecordFilter::open()).await.unwrap();
    assert_eq!(open[0].state.name(), StateName::Quarantined);
    for _ in 0..2 {
        let status = round(&fixture, &ledger).await;
        assert_eq!((status.quarantined, status.unfinished.len()), (0, 1), "{status:?}");
        assert_eq!(status.unfinished[0].id, id);
        assert!(status.is_settled(), "it was reported when it was released: {status:?}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_recoverable_sandbox_is_recovered_and_then_released() {
    let fixture = DaytonaFixture::start().await;
    let ours = json!({"count": 1, "state": "error", "recoverable": true});
    let id = fixture.seed(ours.clone()).await.remove(0);
    let decoys = fixture.seed(json!({"count": 2, "state": "error", "recoverable": true})).await;
    let report = fixture.release(&id).await;
    assert_eq!(report.result, Outcome::Gone, "{report:?}");
    assert!(fixture.inspect(&id).await.is_none());
    assert_eq!(fixture.requests("POST /sandbox/{s}/recover").await, 1);
    for decoy in decoys {
        assert_eq!(fixture.inspect(&decoy).await.unwrap().state, "error");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn a_failed_create_that_cannot_be_recovered_is_kept_and_reported() {
    let fixture = DaytonaFixture::start().await;
    let (supervisor, ledger, _home) = fixture.supervisor().await;
    let fault = json!({"at": "create", "fault": "create_fails_after_alloc", "count": 1,
        "recoverable": false, "message": REASON});
    fixture.fault(fault).await;
    let error = supervisor.create(sandbox()).await.expect_err("the fault makes it fail");
    assert!(error.to_string().contains(REASON), "{error}");
    fixture.assert_every_fault_fired().await;
    let status = supervisor.release_all().await.unwrap();
    let noted = ledger.unfinished_deletes().await.unwrap();
    assert_eq!(noted.len(), 1, "{status:?}");
    assert!(noted[0].reason.as_str().contains(REASON) && noted[0].resource.is_some(), "{noted:?}");
    fixture.stop().await;
}

#[tokio::test]
async fn a_pending_stop_is_waited_for_before_a_delete() {
    let mut settings = Settings::hollow();
    settings.delays.pending = Duration::from_millis(900);
    let fixture = DaytonaFixture::with(settings).await;
    let id = fixture.one().await;
    let other = fixture.another();
    other.api().stop(&id, creel_daytona::StopMode::Polite).await.unwrap();
    let seen = fixture.inspect(&id).await.unwrap();
    assert_eq!((seen.state.as_str(), seen.desired.as_deref()), ("started", Some("stopped")));
    let report = fixture.release(&id).await;
    assert_eq!(report.result, Outcome::Gone, "{report:?}");
    assert!(fixture.requests("DELETE /sandbox/{s}").await <= 3);
    assert_eq!(fixture.provider.inspect(Kind::Sandbox, &id).await.unwrap(), None);
    fixture.stop().await;
}
