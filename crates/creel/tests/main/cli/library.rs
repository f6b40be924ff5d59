//! The library on the real engine: cleanup without the command line, and scopes that release
//! on every path.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use creel_core::cleanup::{Cleanup, CleanupError};
use creel_core::pipeline::{Listing, Pipeline, Selection, Survey};
use creel_core::reap::{Outcome, ReapOptions, Report};
use creel_core::scope::{AcquireError, Request, ScopeError, Supervisor};
use creel_core::select::Selector;
use creel_docker::{DockerProvider, Endpoint};
use creel_ledger::{Ledger, RecordFilter};
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{ContainerSpec as Wanted, ErrorClass, Kind, Provider, Providers, Spec};
use creel_testkit::docker::ContainerSpec;
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::image;
use creel_testkit::wire::{Fault, Rule, Wire};
use futures::FutureExt;
use tokio::sync::oneshot;

use super::fixture::CliFixture;

/// The time limit of a background release.
const DEADLINE: Duration = Duration::from_secs(20);

fn docker(host: &str) -> Arc<dyn Provider> {
    Arc::new(DockerProvider::connect(Endpoint::explicit(host).unwrap()).unwrap())
}

/// A supervisor with its own ledger.
struct Supervised {
    supervisor: Supervisor,
    ledger: Ledger,
}

impl Supervised {
    async fn new(home: &Path, host: &str) -> Self {
        let ledger = Ledger::open(home).await.unwrap();
        let providers = Providers::new(vec![docker(host)]);
        let retry = RetryPolicy { initial: Duration::from_millis(10), ..RetryPolicy::default() };
        let supervisor = Supervisor::new(ledger.clone(), providers, "library test")
            .unwrap()
            .with_options(ReapOptions { retry, ..ReapOptions::default() });
        Self { supervisor, ledger }
    }

    async fn open_records(&self) -> usize {
        self.ledger.records(&RecordFilter::open()).await.unwrap().len()
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

    /// Returns the object of the only record that was ever created.
    async fn only_object(&self) -> Option<String> {
        let all = self.ledger.records(&RecordFilter::default()).await.unwrap();
        assert_eq!(all.len(), 1);
        let history = self.ledger.history(all[0].id).await.unwrap();
        let event = |stored: &creel_ledger::StoredEvent| match &stored.event {
            creel_ledger::Event::Created { object, .. } => Some(object.clone()),
            _ => None,
        };
        history.iter().find_map(event)
    }
}

fn sleeping() -> Request {
    let command = ["sleep", "100000"].map(str::to_owned).to_vec();
    let image = image::REFERENCE.to_owned();
    let spec = Wanted { image, command, ..Wanted::default() };
    Request::new(creel_docker::NAME, Spec::Container(spec))
}

fn is_there(fixture: &CliFixture, id: &str) -> bool {
    fixture.docker().inspect_container(id).unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_releases_after_success_and_after_an_error() {
    let fixture = CliFixture::new();
    let supervised = Supervised::new(&fixture.path("home"), &fixture.engine().host()).await;
    let id = supervised.supervisor.scope(sleeping(), |held| {
        let (there, id) = (is_there(&fixture, &held.id), held.id.clone());
        async move {
            assert!(there);
            id
        }
        .boxed()
    });
    let id = id.await.unwrap();
    assert!(!is_there(&fixture, &id));
    let failed: Result<(), String> = supervised
        .supervisor
        .scope(sleeping(), |held| async move { Err(held.id.clone()) }.boxed())
        .await
        .unwrap();
    assert!(!is_there(&fixture, &failed.unwrap_err()));
    assert_eq!(supervised.open_records().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_releases_when_the_work_panics() {
    let fixture = CliFixture::new();
    let supervised = Supervised::new(&fixture.path("home"), &fixture.engine().host()).await;
    let scope = supervised
        .supervisor
        .scope(sleeping(), |held| async move { std::panic::panic_any(held.id.clone()) }.boxed());
    let panic: Result<Result<(), ScopeError>, _> = AssertUnwindSafe(scope).catch_unwind().await;
    let id = panic.unwrap_err().downcast::<String>().unwrap();
    assert!(!is_there(&fixture, &id), "it was released before the panic continued");
    assert_eq!(supervised.open_records().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_releases_when_the_work_times_out() {
    let fixture = CliFixture::new();
    let supervised = Supervised::new(&fixture.path("home"), &fixture.engine().host()).await;
    let (sender, receiver) = oneshot::channel();
    let limit = Duration::from_millis(100);
    let scope = supervised.supervisor.scope_with_limit(sleeping(), limit, |held| {
        sender.send(held.id.clone()).unwrap();
        futures::future::pending::<()>().boxed()
    });
    let error = scope.await.unwrap_err();
    assert!(
        matches!(error, ScopeError::TimedOut { limit: reported } if reported == limit),
        "{error}"
    );
    assert!(!is_there(&fixture, &receiver.await.unwrap()));
    assert_eq!(supervised.open_records().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_dropped_during_the_work_releases() {
    let fixture = CliFixture::new();
    let supervised = Supervised::new(&fixture.path("home"), &fixture.engine().host()).await;
    let (sender, receiver) = oneshot::channel();
    let scope = supervised.supervisor.scope(sleeping(), |held| {
        sender.send(held.id.clone()).unwrap();
        futures::future::pending::<()>().boxed()
    });
    let id = tokio::select! {
        _ = scope => unreachable!("the work never ends"),
        id = receiver => id.unwrap(),
    };
    supervised.await_closed().await;
    assert!(!is_there(&fixture, &id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_dropped_during_the_create_releases() {
    let fixture = CliFixture::new();
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let slow = Fault::Delay { by: Duration::from_millis(300) };
    let create = wire.add(Rule::new("/containers/create", slow).method("POST"));
    let supervised = Supervised::new(&fixture.path("home"), &wire.host()).await;
    let scope =
        supervised.supervisor.scope(sleeping(), |_| futures::future::pending::<()>().boxed());
    let sent = async {
        while create.fired() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = scope => unreachable!("the work never ends"),
        () = sent => {}
    }
    assert_eq!(supervised.open_records().await, 1, "the intent came first");
    supervised.await_closed().await;
    let id = supervised.only_object().await.expect("the create went on to its end");
    assert!(!is_there(&fixture, &id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_adopts_by_id_and_releases() {
    let fixture = CliFixture::new();
    let supervised = Supervised::new(&fixture.path("home"), &fixture.engine().host()).await;
    let id = fixture.running("-adopted");
    let (provider, kind) = (creel_docker::NAME, Kind::Container);
    let name = supervised
        .supervisor
        .scope_adopted(provider, kind, &id, |held| async move { held.name.clone() }.boxed())
        .await
        .unwrap();
    assert_eq!(name, fixture.named("-adopted"));
    assert!(!is_there(&fixture, &id));
    assert_eq!(supervised.open_records().await, 0);
    let absent = supervised.supervisor.adopt(provider, kind, &id).await.unwrap_err();
    assert!(matches!(absent, AcquireError::Absent { .. }), "{absent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_release_is_an_error_and_stays_on_record() {
    let fixture = CliFixture::new();
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let supervised = Supervised::new(&fixture.path("home"), &wire.host()).await;
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/containers/", denied).method("DELETE"));
    let error = supervised.supervisor.scope(sleeping(), |_| async {}.boxed()).await.unwrap_err();
    let ScopeError::NotReleased { id, reason, .. } = error else { panic!("{error}") };
    assert!(reason.contains("not yours"), "{reason}");
    assert_eq!(supervised.open_records().await, 1);
    wire.heal();
    // A quarantined resource is retried only on request.
    let cleanup = Cleanup::new(docker(&wire.host())).with_ledger(supervised.ledger.clone());
    let report = cleanup.release(Kind::Container, &id).await.unwrap();
    assert_eq!(report.result, Outcome::Gone);
    assert_eq!(supervised.open_records().await, 0);
}

fn gone(report: &Report) -> Vec<String> {
    let items = report.items.iter().filter(|item| item.result == Outcome::Gone);
    let mut names: Vec<String> = items.map(|item| item.name.clone()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_lists_stops_and_releases() {
    // "Old and stopped" selects all such objects, so the engine is private to this test.
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let fixture = CliFixture::on(private.engine());
    let cleanup = Cleanup::new(docker(&private.engine().host()));
    let running = fixture.running("-a");
    fixture.exited("-b");
    fixture.volume("-c");
    let seen = cleanup.list().await.unwrap();
    let states: Vec<(&str, &str)> = seen
        .iter()
        .filter(|seen| seen.kind == Kind::Container)
        .map(|seen| (seen.name.trim_start_matches(&fixture.name), seen.state.as_str()))
        .collect();
    assert_eq!(states.len(), 2);
    assert!(states.contains(&("-a", "running")) && states.contains(&("-b", "exited")));

    cleanup.stop(Kind::Container, &running, Duration::from_secs(5)).await.unwrap();
    let state = fixture.docker().inspect_container(&running).unwrap().unwrap();
    assert_eq!(state["State"]["Status"], "exited");
    let report = cleanup.release(Kind::Container, &running).await.unwrap();
    assert_eq!((report.result, report.tries), (Outcome::Gone, 1));
    let again = cleanup.release(Kind::Container, &running).await.unwrap_err();
    assert!(matches!(again, CleanupError::Provider(error) if error.class == ErrorClass::Gone));

    fixture.running("-d");
    assert_eq!(gone(&cleanup.release_stopped().await.unwrap()), [fixture.named("-b")]);
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(gone(&cleanup.release_old(Kind::Container, day).await.unwrap()), [""; 0]);
    let old = cleanup.release_old(Kind::Container, Duration::ZERO).await.unwrap();
    assert_eq!(gone(&old), [fixture.named("-d")]);
    fixture.volume("-e");
    let pattern = Selector {
        rule: "by name".to_owned(),
        names: vec![format!("{}-?", fixture.name).parse().unwrap()],
        ..Selector::default()
    };
    let report = cleanup.release_matching(&[pattern]).await.unwrap();
    assert_eq!(gone(&report), [fixture.named("-c"), fixture.named("-e")]);
    assert!(report.is_all_gone());
    assert_eq!(fixture.there(), [""; 0]);
    private.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_stops_gracefully_and_ends_at_the_first_failure_on_request() {
    let fixture = CliFixture::new();
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    for suffix in ["-a", "-b"] {
        let spec = ContainerSpec::script(&fixture.named(suffix), script).labels(&fixture.labels());
        fixture.docker().run(&spec).unwrap();
    }
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    let fault = wire.add(Rule::new("/containers/", denied).method("DELETE").times(1));
    let cleanup = Cleanup::new(docker(&wire.host())).with_options(ReapOptions {
        stop_timeout: Some(Duration::from_secs(10)),
        fail_fast: true,
        concurrency: Some(1),
        ..ReapOptions::default()
    });
    let labelled =
        Selector { labels: vec![fixture.label().parse().unwrap()], ..Selector::default() };
    let report = cleanup.release_matching(std::slice::from_ref(&labelled)).await.unwrap();
    assert_eq!(fault.fired(), 1);
    assert_eq!((report.count(Outcome::Failed), report.count(Outcome::Spared)), (1, 1));
    let report = cleanup.release_matching(&[labelled]).await.unwrap();
    assert_eq!(gone(&report), [fixture.named("-a"), fixture.named("-b")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_with_a_ledger_spares_resources_of_a_live_owner() {
    let fixture = CliFixture::new();
    let supervised = Supervised::new(&fixture.path("home"), &fixture.engine().host()).await;
    let held = supervised.supervisor.create(sleeping()).await.unwrap();
    let cleanup =
        Cleanup::new(docker(&fixture.engine().host())).with_ledger(supervised.ledger.clone());
    let ours = Selector { owned: true, ..Selector::default() };
    let report = cleanup.release_matching(std::slice::from_ref(&ours)).await.unwrap();
    assert_eq!(report.count(Outcome::Spared), 1);
    assert!(is_there(&fixture, &held.id));
    let report = cleanup.release(Kind::Container, &held.id).await.unwrap();
    assert_eq!(report.result, Outcome::Gone, "named on purpose");
    assert_eq!(supervised.open_records().await, 0);
    held.forget();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_restarted_right_after_the_inspect_is_spared() {
    let fixture = CliFixture::new();
    let restarted = ContainerSpec::sleeping(&fixture.named("-again")).labels(&fixture.labels());
    let restarted = fixture.docker().create(&restarted).unwrap();
    let resting = ContainerSpec::sleeping(&fixture.named("-rest")).labels(&fixture.labels());
    let resting = fixture.docker().create(&resting).unwrap();
    let selectors = [Selector {
        labels: vec![fixture.label().parse().unwrap()],
        states: vec!["created".to_owned()],
        ..Selector::default()
    }];
    let provider = docker(&fixture.engine().host());
    let providers = Providers::new(vec![provider]);
    let retry = RetryPolicy { retries: 0, ..RetryPolicy::default() };
    let options = ReapOptions { retry, ..ReapOptions::default() };
    let pipeline = Pipeline::new(providers.clone(), None).with_options(options);
    let listing = Listing::read(&providers, &[Kind::Container]).await;
    let mut survey = Survey::new(listing, None).await.unwrap();
    let selection = Selection { selectors: &selectors, findings: None, force: false };
    let planned = pipeline.plan(&mut survey, selection).await.unwrap();
    fixture.docker().start(&restarted).unwrap();
    let report = pipeline.release(planned.uncapped(), &()).await;
    assert_eq!(gone(&report), [fixture.named("-rest")]);
    let left = report.items.iter().find(|item| item.id == restarted).unwrap();
    assert_eq!(left.result, Outcome::Drifted);
    assert_eq!(left.reason.as_deref(), Some("it is running now, it was created"));
    assert!(is_there(&fixture, &restarted) && !is_there(&fixture, &resting));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_container_costs_two_requests() {
    let fixture = CliFixture::new();
    for number in 0..20 {
        let name = fixture.named(&format!("-{number}"));
        fixture.docker().create(&ContainerSpec::sleeping(&name).labels(&fixture.labels())).unwrap();
    }
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let cleanup = Cleanup::new(docker(&wire.host()));
    let labelled =
        Selector { labels: vec![fixture.label().parse().unwrap()], ..Selector::default() };
    let seen_at = Instant::now();
    let report = cleanup.release_matching(&[labelled]).await.unwrap();
    assert_eq!(report.count(Outcome::Gone), 20);
    // One request negotiates the version, and one lists each kind; then the removal and the proof.
    // A removal that starts more than a second after the list is preceded by another inspect.
    let (lists, each) = (5, if seen_at.elapsed() < Duration::from_secs(1) { 2 } else { 3 });
    assert!(wire.requests() <= lists + 20 * each, "{} requests", wire.requests());
}
