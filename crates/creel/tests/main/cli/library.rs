//! The library on the real engine: cleanup without the command line, and scopes that give
//! back on every path.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use creel_core::cleanup::{Cleanup, CleanupError};
use creel_core::plan;
use creel_core::plan::PlanInput;
use creel_core::reap::{Outcome, ReapOptions, Reaper, Report};
use creel_core::scope::{AcquireError, Request, ScopeError, Supervisor};
use creel_core::select::{RecordIndex, Selector};
use creel_docker::{DockerProvider, Endpoint};
use creel_ledger::{Ledger, RecordFilter};
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{
    ContainerSpec as Wanted, ErrorClass, Kind, Provider, ProviderName, Providers, Spec,
};
use creel_testkit::docker::ContainerSpec;
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::image;
use creel_testkit::wire::{Fault, Rule, Wire};
use futures::FutureExt;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::bench::Bench;

/// How long a background release may take.
const DEADLINE: Duration = Duration::from_secs(20);

fn docker(host: &str) -> Arc<dyn Provider> {
    Arc::new(DockerProvider::connect(Endpoint::explicit(host).unwrap()).unwrap())
}

/// A supervisor with a ledger of its own.
struct Desk {
    supervisor: Supervisor,
    ledger: Ledger,
}

impl Desk {
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

    /// Waits until nothing is on record as still to be given back.
    async fn settled(&self) {
        let settled = async {
            while self.open_records().await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, settled).await.expect("everything is given back");
    }

    /// Returns the object that the only record ever made speaks of.
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
    Request::new(ProviderName::Docker, Spec::Container(spec))
}

fn is_there(bench: &Bench, id: &str) -> bool {
    bench.docker().inspect_container(id).unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_gives_back_after_success_and_after_an_error() {
    let bench = Bench::new();
    let desk = Desk::new(&bench.path("home"), &bench.engine().host()).await;
    let id = desk.supervisor.scope(sleeping(), |held| {
        let (there, id) = (is_there(&bench, &held.id), held.id.clone());
        async move {
            assert!(there);
            id
        }
        .boxed()
    });
    let id = id.await.unwrap();
    assert!(!is_there(&bench, &id));
    let failed: Result<(), String> = desk
        .supervisor
        .scope(sleeping(), |held| async move { Err(held.id.clone()) }.boxed())
        .await
        .unwrap();
    assert!(!is_there(&bench, &failed.unwrap_err()));
    assert_eq!(desk.open_records().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_gives_back_when_the_work_panics() {
    let bench = Bench::new();
    let desk = Desk::new(&bench.path("home"), &bench.engine().host()).await;
    let scope = desk
        .supervisor
        .scope(sleeping(), |held| async move { std::panic::panic_any(held.id.clone()) }.boxed());
    let panic: Result<Result<(), ScopeError>, _> = AssertUnwindSafe(scope).catch_unwind().await;
    let id = panic.unwrap_err().downcast::<String>().unwrap();
    assert!(!is_there(&bench, &id), "it was given back before the panic went on");
    assert_eq!(desk.open_records().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_gives_back_when_the_work_runs_out_of_time() {
    let bench = Bench::new();
    let desk = Desk::new(&bench.path("home"), &bench.engine().host()).await;
    let (tell, told) = oneshot::channel();
    let limit = Duration::from_millis(100);
    let scope = desk.supervisor.scope_with_limit(sleeping(), limit, |held| {
        tell.send(held.id.clone()).unwrap();
        futures::future::pending::<()>().boxed()
    });
    let error = scope.await.unwrap_err();
    assert!(matches!(error, ScopeError::TimedOut { limit: told } if told == limit), "{error}");
    assert!(!is_there(&bench, &told.await.unwrap()));
    assert_eq!(desk.open_records().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_that_is_dropped_in_the_middle_of_the_work_gives_back() {
    let bench = Bench::new();
    let desk = Desk::new(&bench.path("home"), &bench.engine().host()).await;
    let (tell, told) = oneshot::channel();
    let scope = desk.supervisor.scope(sleeping(), |held| {
        tell.send(held.id.clone()).unwrap();
        futures::future::pending::<()>().boxed()
    });
    let id = tokio::select! {
        _ = scope => unreachable!("the work never ends"),
        id = told => id.unwrap(),
    };
    desk.settled().await;
    assert!(!is_there(&bench, &id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_that_is_dropped_in_the_middle_of_the_create_gives_back() {
    let bench = Bench::new();
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let slow = Fault::Delay { by: Duration::from_millis(300) };
    let create = wire.add(Rule::new("/containers/create", slow).method("POST"));
    let desk = Desk::new(&bench.path("home"), &wire.host()).await;
    let scope = desk.supervisor.scope(sleeping(), |_| futures::future::pending::<()>().boxed());
    let sent = async {
        while create.fired() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = scope => unreachable!("the work never ends"),
        () = sent => {}
    }
    assert_eq!(desk.open_records().await, 1, "the intent came first");
    desk.settled().await;
    let id = desk.only_object().await.expect("the create went on to its end");
    assert!(!is_there(&bench, &id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_adopts_by_id_and_gives_back() {
    let bench = Bench::new();
    let desk = Desk::new(&bench.path("home"), &bench.engine().host()).await;
    let id = bench.running("-adopted");
    let (provider, kind) = (ProviderName::Docker, Kind::Container);
    let name = desk
        .supervisor
        .scope_adopted(provider, kind, &id, |held| async move { held.name.clone() }.boxed())
        .await
        .unwrap();
    assert_eq!(name, bench.named("-adopted"));
    assert!(!is_there(&bench, &id));
    assert_eq!(desk.open_records().await, 0);
    let absent = desk.supervisor.adopt(provider, kind, &id).await.unwrap_err();
    assert!(matches!(absent, AcquireError::Absent { .. }), "{absent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_given_back_is_an_error_and_stays_on_record() {
    let bench = Bench::new();
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let desk = Desk::new(&bench.path("home"), &wire.host()).await;
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/containers/", denied).method("DELETE"));
    let error = desk.supervisor.scope(sleeping(), |_| async {}.boxed()).await.unwrap_err();
    let ScopeError::NotReleased { id, reason, .. } = error else { panic!("{error}") };
    assert!(reason.contains("not yours"), "{reason}");
    assert_eq!(desk.open_records().await, 1);
    wire.heal();
    // What is quarantined is tried again only on purpose.
    let cleanup = Cleanup::new(docker(&wire.host())).with_ledger(desk.ledger.clone());
    let report = cleanup.release(Kind::Container, &id).await.unwrap();
    assert_eq!(report.result, Outcome::Gone);
    assert_eq!(desk.open_records().await, 0);
}

fn gone(report: &Report) -> Vec<String> {
    let items = report.items.iter().filter(|item| item.result == Outcome::Gone);
    let mut names: Vec<String> = items.map(|item| item.name.clone()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_lists_stops_and_releases() {
    // Old and stopped means everything that is, so the engine is this test's own.
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let bench = Bench::on(private.engine());
    let cleanup = Cleanup::new(docker(&private.engine().host()));
    let running = bench.running("-a");
    bench.exited("-b");
    bench.volume("-c");
    let seen = cleanup.list().await.unwrap();
    let states: Vec<(&str, &str)> = seen
        .iter()
        .filter(|seen| seen.kind == Kind::Container)
        .map(|seen| (seen.name.trim_start_matches(&bench.name), seen.state.as_str()))
        .collect();
    assert_eq!(states.len(), 2);
    assert!(states.contains(&("-a", "running")) && states.contains(&("-b", "exited")));

    cleanup.stop(Kind::Container, &running, Duration::from_secs(5)).await.unwrap();
    let state = bench.docker().inspect_container(&running).unwrap().unwrap();
    assert_eq!(state["State"]["Status"], "exited");
    let report = cleanup.release(Kind::Container, &running).await.unwrap();
    assert_eq!((report.result, report.tries), (Outcome::Gone, 1));
    let again = cleanup.release(Kind::Container, &running).await.unwrap_err();
    assert!(matches!(again, CleanupError::Provider(error) if error.class == ErrorClass::Gone));

    bench.running("-d");
    assert_eq!(gone(&cleanup.release_stopped().await.unwrap()), [bench.named("-b")]);
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(gone(&cleanup.release_old(Kind::Container, day).await.unwrap()), [""; 0]);
    let old = cleanup.release_old(Kind::Container, Duration::ZERO).await.unwrap();
    assert_eq!(gone(&old), [bench.named("-d")]);
    bench.volume("-e");
    let pattern = Selector {
        rule: "by name".to_owned(),
        names: vec![format!("{}-?", bench.name).parse().unwrap()],
        ..Selector::default()
    };
    let report = cleanup.release_matching(&[pattern]).await.unwrap();
    assert_eq!(gone(&report), [bench.named("-c"), bench.named("-e")]);
    assert!(report.is_all_gone());
    assert_eq!(bench.there(), [""; 0]);
    private.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_asks_politely_and_stops_at_the_first_failure_when_told_to() {
    let bench = Bench::new();
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    for suffix in ["-a", "-b"] {
        let spec = ContainerSpec::script(&bench.named(suffix), script).labels(&bench.labels());
        bench.docker().run(&spec).unwrap();
    }
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    let fault = wire.add(Rule::new("/containers/", denied).method("DELETE").times(1));
    let cleanup = Cleanup::new(docker(&wire.host())).with_options(ReapOptions {
        stop_timeout: Some(Duration::from_secs(10)),
        fail_fast: true,
        concurrency: Some(1),
        ..ReapOptions::default()
    });
    let labelled = Selector { labels: vec![bench.label().parse().unwrap()], ..Selector::default() };
    let report = cleanup.release_matching(std::slice::from_ref(&labelled)).await.unwrap();
    assert_eq!(fault.fired(), 1);
    assert_eq!((report.count(Outcome::Failed), report.count(Outcome::Spared)), (1, 1));
    let report = cleanup.release_matching(&[labelled]).await.unwrap();
    assert_eq!(gone(&report), [bench.named("-a"), bench.named("-b")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_with_a_ledger_spares_what_a_live_owner_holds() {
    let bench = Bench::new();
    let desk = Desk::new(&bench.path("home"), &bench.engine().host()).await;
    let held = desk.supervisor.create(sleeping()).await.unwrap();
    let cleanup = Cleanup::new(docker(&bench.engine().host())).with_ledger(desk.ledger.clone());
    let ours = Selector { owned: true, ..Selector::default() };
    let report = cleanup.release_matching(std::slice::from_ref(&ours)).await.unwrap();
    assert_eq!(report.count(Outcome::Spared), 1);
    assert!(is_there(&bench, &held.id));
    let report = cleanup.release(Kind::Container, &held.id).await.unwrap();
    assert_eq!(report.result, Outcome::Gone, "named on purpose");
    assert_eq!(desk.open_records().await, 0);
    held.forget();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_started_again_right_after_the_look_is_left_alone() {
    let bench = Bench::new();
    let restarted = ContainerSpec::sleeping(&bench.named("-again")).labels(&bench.labels());
    let restarted = bench.docker().create(&restarted).unwrap();
    let resting = ContainerSpec::sleeping(&bench.named("-rest")).labels(&bench.labels());
    let resting = bench.docker().create(&resting).unwrap();
    let selectors = [Selector {
        labels: vec![bench.label().parse().unwrap()],
        states: vec!["created".to_owned()],
        ..Selector::default()
    }];
    let provider = docker(&bench.engine().host());
    let seen_at = Some(Instant::now());
    let inventory = provider.list(&[Kind::Container]).await.unwrap();
    let plan = plan::build(PlanInput {
        worlds: Vec::new(),
        inventory: &inventory,
        record_index: &RecordIndex::default(),
        selectors: &selectors,
        findings: None,
        protect: &[],
        force: false,
        now: Timestamp::now(),
    });
    bench.docker().start(&restarted).unwrap();
    let retry = RetryPolicy { retries: 0, ..RetryPolicy::default() };
    let options =
        ReapOptions { seen_at, retry, selectors: selectors.to_vec(), ..ReapOptions::default() };
    let reaper = Reaper::new(Providers::new(vec![provider]), None);
    let report = reaper.run(&plan, &options, &()).await;
    assert_eq!(gone(&report), [bench.named("-rest")]);
    let left = report.items.iter().find(|item| item.id == restarted).unwrap();
    assert_eq!(left.result, Outcome::Drifted);
    assert_eq!(left.reason.as_deref(), Some("it is running now, it was created"));
    assert!(is_there(&bench, &restarted) && !is_there(&bench, &resting));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_at_rest_costs_two_requests() {
    let bench = Bench::new();
    for number in 0..20 {
        let name = bench.named(&format!("-{number}"));
        bench.docker().create(&ContainerSpec::sleeping(&name).labels(&bench.labels())).unwrap();
    }
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let cleanup = Cleanup::new(docker(&wire.host()));
    let labelled = Selector { labels: vec![bench.label().parse().unwrap()], ..Selector::default() };
    let seen_at = Instant::now();
    let report = cleanup.release_matching(&[labelled]).await.unwrap();
    assert_eq!(report.count(Outcome::Gone), 20);
    // One to agree on a version, one list a kind; then the order and the proof. What is ordered
    // later than a second after the list is looked at once more.
    let (lists, each) = (5, if seen_at.elapsed() < Duration::from_secs(1) { 2 } else { 3 });
    assert!(wire.requests() <= lists + 20 * each, "{} requests", wire.requests());
}
