//! The library on Daytona: cleanup without the command line, and managed sandboxes that are
//! released on every path.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use creel_core::cleanup::{Cleanup, CleanupError};
use creel_core::reap::{Outcome, ReapOptions, Report};
use creel_core::scope::{AcquireError, Request, ScopeError, Supervisor};
use creel_ledger::{Ledger, RecordFilter};
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{ErrorClass, Kind, Provider, Providers};
use creel_model::provider::{SandboxSpec, Spec};
use futures::FutureExt;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::cloud::{Cloud, stem};

/// The time limit of a background release.
const DEADLINE: Duration = Duration::from_secs(30);

/// A cloud, a supervisor with its own ledger, and a decoy sandbox.
struct ManagedFixture {
    cloud: Cloud,
    supervisor: Supervisor,
    ledger: Ledger,
    decoy: String,
    _home: TempDir,
}

/// Returns retry options that do not make a test wait.
fn quick() -> ReapOptions {
    let retry = RetryPolicy {
        initial: Duration::from_millis(10),
        deadline: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    ReapOptions { retry, ..ReapOptions::default() }
}

impl ManagedFixture {
    async fn new() -> Self {
        let (cloud, home) = (Cloud::start(), tempfile::tempdir().unwrap());
        let decoy = cloud.plant("decoy", json!({}));
        let ledger = Ledger::open(home.path()).await.unwrap();
        let provider: Arc<dyn Provider> = cloud.provider();
        let providers = Providers::new(vec![provider]);
        let supervisor = Supervisor::new(ledger.clone(), providers, "library test").unwrap();
        let supervisor = supervisor.with_options(quick());
        Self { cloud, supervisor, ledger, decoy, _home: home }
    }

    async fn open_records(&self) -> usize {
        self.ledger.records(&RecordFilter::open()).await.unwrap().len()
    }

    /// Asserts that only the decoy is left, hidden records included, and no record is open.
    async fn assert_all_released(&self) {
        assert_eq!(self.cloud.there(), ["decoy"]);
        assert_eq!(self.cloud.state(&self.decoy), "started");
        assert_eq!(self.open_records().await, 0);
    }

    /// Waits until no open record is left.
    async fn await_closed(&self) {
        let await_closed = async {
            while self.open_records().await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, await_closed).await.expect("everything is released");
    }
}

fn sandbox() -> Request {
    Request::new(creel_daytona::NAME, Spec::Sandbox(SandboxSpec::default()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sandbox_is_released_after_success_and_after_an_error() {
    let fixture = ManagedFixture::new().await;
    let work = fixture.supervisor.scope(sandbox(), |held| {
        let state = fixture.cloud.state(&held.id);
        async move { state }.boxed()
    });
    assert_eq!(work.await.unwrap(), "started");
    let failed: Result<(), &str> =
        fixture.supervisor.scope(sandbox(), |_| async { Err("no luck") }.boxed()).await.unwrap();
    assert_eq!(failed, Err("no luck"));
    fixture.assert_all_released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_released_when_the_work_panics_or_times_out() {
    let fixture = ManagedFixture::new().await;
    let panics = fixture.supervisor.scope::<(), _>(sandbox(), |held| {
        async move { std::panic::panic_any(held.id.clone()) }.boxed()
    });
    let panic = AssertUnwindSafe(panics).catch_unwind().await.unwrap_err();
    let id = panic.downcast::<String>().unwrap();
    assert_eq!(fixture.cloud.state(&id), "404", "it was released before the panic continued");
    let limit = Duration::from_millis(100);
    let endless = fixture
        .supervisor
        .scope_with_limit(sandbox(), limit, |_| futures::future::pending::<()>().boxed());
    let error = endless.await.unwrap_err();
    assert!(matches!(error, ScopeError::TimedOut { .. }), "{error}");
    fixture.assert_all_released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_released_when_its_user_is_cancelled() {
    let fixture = ManagedFixture::new().await;
    let (sender, receiver) = oneshot::channel();
    let scope = fixture.supervisor.scope(sandbox(), |_| {
        sender.send(()).unwrap();
        futures::future::pending::<()>().boxed()
    });
    tokio::select! {
        _ = scope => unreachable!("the work never ends"),
        received = receiver => received.unwrap(),
    }
    fixture.await_closed().await;

    // And in the middle of the create, whose response comes late.
    fixture.cloud.arm(&json!({ "at": "create", "fault": "latency", "seconds": 0.5 }));
    let scope = fixture.supervisor.scope(sandbox(), |_| futures::future::pending::<()>().boxed());
    let intended = async {
        while fixture.open_records().await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = scope => unreachable!("the work never ends"),
        () = intended => {}
    }
    fixture.await_closed().await;
    fixture.assert_all_released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_adopted_by_its_id_or_name_and_released() {
    let fixture = ManagedFixture::new().await;
    let (provider, kind) = (creel_daytona::NAME, Kind::Sandbox);
    let id = fixture.cloud.plant("adopted", json!({}));
    let name = fixture
        .supervisor
        .scope_adopted(provider, kind, &id, |held| async move { held.name.clone() }.boxed())
        .await
        .unwrap();
    assert_eq!(stem(&name), "adopted");
    assert_eq!(fixture.cloud.state(&id), "404");

    // A delete renames the sandbox, so the absence of its old name alone would prove nothing.
    let id = fixture.cloud.plant("adopted", json!({}));
    let name = fixture.cloud.sandbox(&id)["name"].as_str().unwrap().to_owned();
    let held = fixture
        .supervisor
        .scope_adopted(provider, kind, &name, |held| async move { held.id.clone() }.boxed());
    assert_eq!(held.await.unwrap(), id);
    fixture.assert_all_released().await;
    let absent = fixture.supervisor.adopt(provider, kind, &id).await.unwrap_err();
    assert!(matches!(absent, AcquireError::Absent { .. }), "{absent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_create_that_leaves_a_sandbox_is_cleaned_up() {
    let fixture = ManagedFixture::new().await;
    fixture.cloud.arm(&json!({ "at": "create", "fault": "create_fails_after_alloc", "count": 1 }));
    let error = fixture.supervisor.scope(sandbox(), |_| async {}.boxed()).await.unwrap_err();
    assert!(matches!(error, ScopeError::Acquire(_)), "{error}");
    fixture.await_closed().await;
    fixture.assert_all_released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_be_released_is_an_error_and_stays_on_record() {
    let fixture = ManagedFixture::new().await;
    fixture.cloud.arm(&json!({ "at": "delete", "fault": "stuck_destroying", "seconds": 8 }));
    let error = fixture.supervisor.scope(sandbox(), |_| async {}.boxed()).await.unwrap_err();
    let ScopeError::NotReleased { id, .. } = error else { panic!("{error}") };
    assert_eq!(fixture.cloud.state(&id), "destroying", "which is not gone");
    assert_eq!(fixture.open_records().await, 1);
    let gone = async {
        while fixture.cloud.state(&id) != "404" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.unwrap();
    let status = fixture.supervisor.release_all().await.unwrap();
    assert!(status.is_settled(), "{status:?}");
    fixture.assert_all_released().await;
}

fn gone(report: &Report) -> Vec<String> {
    let items = report.items.iter().filter(|item| item.result == Outcome::Gone);
    let mut names: Vec<String> = items.map(|item| stem(&item.name)).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_lists_and_releases_stopped_old_and_single_sandboxes() {
    let cloud = Cloud::start();
    let cleanup = Cleanup::new(cloud.provider()).with_options(quick());
    let old = json!({ "age_seconds": 25 * 3600, "idle_seconds": 0 });
    cloud.plant("old", old);
    cloud.plant("stopped", json!({ "state": "stopped" }));
    // A sandbox that the service can recover is released; it keeps any other failed one for days.
    cloud.plant("failed", json!({ "state": "error", "recoverable": true }));
    let running = cloud.plant("running", json!({}));
    assert_eq!(cleanup.list().await.unwrap().len(), 4);

    let report = cleanup.release_stopped().await.unwrap();
    assert_eq!(
        (gone(&report), report.is_all_gone()),
        (vec!["failed".into(), "stopped".into()], true)
    );
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(gone(&cleanup.release_old(Kind::Sandbox, day).await.unwrap()), ["old"]);

    cleanup.stop(Kind::Sandbox, &running, Duration::from_secs(5)).await.unwrap();
    assert_eq!(cloud.state(&running), "stopped");
    cloud.arm(&json!({ "at": "delete", "fault": "status", "status": 503, "count": 2 }));
    let report = cleanup.release(Kind::Sandbox, &running).await.unwrap();
    assert_eq!((report.result, report.tries), (Outcome::Gone, 3));
    let again = cleanup.release(Kind::Sandbox, &running).await.unwrap_err();
    assert!(matches!(again, CleanupError::Provider(error) if error.class == ErrorClass::Gone));

    // The script would have found nothing to delete, and reported success.
    cloud.arm(&json!({ "at": "list", "fault": "status", "status": 403 }));
    let error = cleanup.release_stopped().await.unwrap_err();
    assert!(matches!(error, CleanupError::Provider(error) if error.class == ErrorClass::Denied));
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_ends_at_the_first_failure_on_request() {
    let cloud = Cloud::start();
    for _ in 0..4 {
        cloud.plant("box", json!({ "state": "stopped" }));
    }
    cloud.arm(&json!({ "at": "delete", "fault": "status", "status": 400, "count": 1 }));
    let options = ReapOptions { fail_fast: true, concurrency: Some(1), ..quick() };
    let cleanup = Cleanup::new(cloud.provider()).with_options(options);
    let report = cleanup.release_stopped().await.unwrap();
    assert_eq!((report.count(Outcome::Failed), report.count(Outcome::Spared)), (1, 3));
    assert_eq!(cloud.there().len(), 4);
    assert_eq!(gone(&cleanup.release_stopped().await.unwrap()).len(), 4);
}
