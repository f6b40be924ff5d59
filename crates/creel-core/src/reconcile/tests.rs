//! Rounds against a fake provider, with a manual clock.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use creel_ledger::examples::{a_dead_owner, me};
use creel_ledger::{Event, Intent, OnOwnerDeath, ResourceState};
use creel_model::clock::ManualClock;
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{
    ContainerSpec, CreateRequest, Deadline, Kind, Marks, Permit, Provider, ReleaseMode, Released,
    Spec,
};
use tempfile::TempDir;

use crate::scope::{Request, Supervisor};

use super::*;

const WINDOW: Duration = Duration::from_secs(600);
const DAY_MS: i64 = 86_400_000;

/// A provider with the objects that a test adds to it.
#[derive(Debug, Default)]
struct FakeProvider {
    objects: Mutex<Vec<Observed>>,
    /// The error that rejects releases, if any.
    obstacle: Mutex<Option<&'static str>>,
    /// Whether callers create the objects themselves.
    local: bool,
    /// How long a release takes, and how much longer than others it may.
    slow: Duration,
    allowance: Duration,
}

impl FakeProvider {
    fn add_object(&self, resource: ResourceId) {
        let id = resource.object_name();
        let labels = [(labels::RESOURCE, resource.to_string())].into();
        let object = Observed::known_by_id(creel_docker::NAME, Kind::Container, id);
        self.objects.lock().unwrap().push(Observed { labels, ..object });
    }

    fn denied(message: &str) -> ProviderError {
        ProviderError {
            provider: creel_docker::NAME,
            operation: "release".to_owned(),
            message: message.to_owned(),
            class: ErrorClass::Denied,
            retry_after: None,
        }
    }
}

type CallResult<T> = creel_model::provider::Result<T>;

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> ProviderName {
        creel_docker::NAME
    }

    fn address(&self) -> String {
        "provider".to_owned()
    }

    fn other_account_hint(&self) -> &'static str {
        "use the other fake"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Container]
    }

    fn creates_end_with_caller(&self) -> bool {
        self.local
    }

    fn release_allowance(&self, _kind: Kind) -> Duration {
        self.allowance
    }

    fn within(self: Arc<Self>, _permit: Permit, _deadline: Deadline) -> Arc<dyn Provider> {
        self
    }

    async fn identity(&self) -> CallResult<String> {
        Ok("provider".to_owned())
    }

    async fn list(&self, _kinds: &[Kind]) -> CallResult<Vec<Observed>> {
        Ok(self.objects.lock().unwrap().clone())
    }

    async fn inspect(&self, _kind: Kind, id: &str) -> CallResult<Option<Observed>> {
        Ok(self.objects.lock().unwrap().iter().find(|object| object.id == id).cloned())
    }

    async fn find(&self, marks: &Marks) -> CallResult<Vec<Observed>> {
        let objects = self.objects.lock().unwrap();
        Ok(objects.iter().filter(|object| object.name == marks.name).cloned().collect())
    }

    async fn create(&self, _request: &CreateRequest) -> CallResult<String> {
        Err(Self::denied("nothing is made here"))
    }

    async fn stop(&self, _kind: Kind, _id: &str, _timeout: Duration) -> CallResult<()> {
        Ok(())
    }

    async fn release(&self, _kind: Kind, id: &str, _mode: ReleaseMode) -> CallResult<Released> {
        if let Some(obstacle) = *self.obstacle.lock().unwrap() {
            return Err(Self::denied(obstacle));
        }
        tokio::time::sleep(self.slow).await;
        self.objects.lock().unwrap().retain(|object| object.id != id);
        Ok(Released::Done)
    }
}

/// A ledger with one unanswered create of a dead owner.
struct RoundFixture {
    _home: TempDir,
    clock: Arc<ManualClock>,
    ledger: Ledger,
    provider: Arc<FakeProvider>,
    resource: ResourceId,
}

impl RoundFixture {
    async fn set(provider: FakeProvider) -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(20_000 * DAY_MS));
        let ledger = Ledger::open_with_clock(home.path(), clock.clone()).await.unwrap();
        let (resource, owner) = (ResourceId::new(), a_dead_owner());
        let intent = Intent {
            id: resource,
            run: None,
            provider: creel_docker::NAME,
            kind: Kind::Container,
            name: resource.object_name(),
            labels: labels::of_resource(&resource, &ledger.id(), &owner.owner, None),
            owner,
            on_owner_death: OnOwnerDeath::Release,
            lease: Duration::from_secs(60),
        };
        ledger.record_intent(&intent).await.unwrap();
        Self { _home: home, clock, ledger, provider: Arc::new(provider), resource }
    }

    async fn round(&self) -> Status {
        let providers = Providers::new(vec![self.provider.clone()]);
        let reconciler = Reconciler::new(self.ledger.clone(), providers, me());
        reconciler.with_intent_window(WINDOW).round().await.unwrap()
    }

    /// Assigns the record to a process that has ended, as every reconciler eventually does.
    async fn leave(&self) {
        let event = Event::OwnerChanged { owner: a_dead_owner() };
        self.ledger.append(&[(self.resource, event)]).await.unwrap();
    }

    async fn state(&self) -> ResourceState {
        self.ledger.record(self.resource).await.unwrap().unwrap().state
    }

    async fn event_count(&self) -> usize {
        self.ledger.history(self.resource).await.unwrap().len()
    }
}

#[tokio::test]
async fn a_clock_a_day_ahead_closes_no_unanswered_create_and_its_late_object_is_released() {
    for jump in [DAY_MS, -DAY_MS] {
        let fixture = RoundFixture::set(FakeProvider::default()).await;
        fixture.clock.jump_wall(jump);
        let status = fixture.round().await;
        assert_eq!((status.open_intents, status.closed_intents), (1, 0));
        assert!(!status.is_settled());
        let waiting = &status.waiting[0];
        let left_ms = waiting.until.as_millisecond() - fixture.clock.now().wall_ms;
        assert_eq!((waiting.resource, left_ms), (fixture.resource, 600_000));
        fixture.provider.add_object(fixture.resource);
        let status = fixture.round().await;
        assert_eq!((status.released(), status.open_intents), (1, 0));
        assert!(status.is_settled());
        assert_eq!(fixture.state().await, ResourceState::Gone);
    }
}

#[tokio::test]
async fn a_window_during_which_the_clock_jumped_is_granted_once_more() {
    let fixture = RoundFixture::set(FakeProvider::default()).await;
    fixture.clock.jump_wall(DAY_MS);
    fixture.clock.advance(WINDOW);
    assert_eq!(fixture.round().await.open_intents, 1);
    let history = fixture.ledger.history(fixture.resource).await.unwrap();
    assert!(matches!(history.last().unwrap().event, Event::SearchRestarted { .. }));
    // A round that grants nothing writes nothing.
    fixture.clock.advance(WINDOW / 2);
    assert_eq!(fixture.round().await.open_intents, 1);
    assert_eq!(fixture.event_count().await, history.len());
    fixture.clock.advance(WINDOW / 2);
    let status = fixture.round().await;
    assert_eq!((status.open_intents, status.closed_intents), (0, 1));
    assert_eq!(fixture.ledger.check().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_create_that_ends_with_its_dead_caller_is_not_waited_for() {
    let fixture = RoundFixture::set(FakeProvider { local: true, ..FakeProvider::default() }).await;
    let status = fixture.round().await;
    assert_eq!((status.open_intents, status.closed_intents), (0, 1));
    assert!(status.is_settled());
    assert_eq!(fixture.state().await, ResourceState::Gone);
}

#[tokio::test]
async fn an_heir_does_not_wait_for_a_create_of_a_dead_caller() {
    let fixture = RoundFixture::set(FakeProvider { local: true, ..FakeProvider::default() }).await;
    let providers = Providers::new(vec![fixture.provider.clone()]);
    let reconciler = Reconciler::new(fixture.ledger.clone(), providers, me());
    let status = reconciler.inherit(&a_dead_owner().owner).await.unwrap();
    assert_eq!((status.open_intents, status.closed_intents), (0, 1));
}

#[tokio::test]
async fn a_release_that_may_take_longer_than_others_is_waited_for() {
    let slow = Duration::from_millis(1500);
    for (allowance, outcome) in
        [(Duration::ZERO, Outcome::Failed), (Duration::from_secs(60), Outcome::Gone)]
    {
        let fixture =
            RoundFixture::set(FakeProvider { slow, allowance, ..FakeProvider::default() }).await;
        fixture.provider.add_object(fixture.resource);
        let providers = Providers::new(vec![fixture.provider.clone()]);
        let retry = RetryPolicy { deadline: slow / 2, ..RetryPolicy::default() };
        let options = ReapOptions { retry, ..ReapOptions::default() };
        let reconciler = Reconciler::new(fixture.ledger.clone(), providers, me());
        let status = reconciler.with_options(options).round().await.unwrap();
        assert_eq!(status.items[0].result, outcome, "{allowance:?}");
    }
}

#[tokio::test]
async fn every_round_retries_a_quarantined_record_once() {
    let fixture = RoundFixture::set(FakeProvider::default()).await;
    fixture.provider.add_object(fixture.resource);
    *fixture.provider.obstacle.lock().unwrap() = Some("the door is locked");
    let status = fixture.round().await;
    assert_eq!((status.quarantined, status.items[0].result), (0, Outcome::Quarantined));
    // While its owner lives, only the owner retries it.
    assert_eq!(fixture.round().await.items.len(), 0);
    fixture.leave().await;

    // It is retried and fails for the same reason, so nothing new is on record.
    let events = fixture.event_count().await;
    let status = fixture.round().await;
    assert_eq!((status.quarantined, status.items[0].result), (1, Outcome::Quarantined));
    assert_eq!(fixture.event_count().await, events);

    *fixture.provider.obstacle.lock().unwrap() = Some("the key is lost");
    assert!(fixture.round().await.is_left());
    assert_eq!(fixture.state().await.reason(), Some(&"the key is lost".into()));

    *fixture.provider.obstacle.lock().unwrap() = None;
    let status = fixture.round().await;
    assert_eq!((status.quarantined, status.left_quarantine, status.released()), (0, 1, 1));
    assert!(status.is_settled());
    assert_eq!(fixture.state().await, ResourceState::Gone);
    assert_eq!(fixture.ledger.check().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_quarantined_record_whose_object_is_gone_is_closed() {
    let fixture = RoundFixture::set(FakeProvider::default()).await;
    fixture.provider.add_object(fixture.resource);
    *fixture.provider.obstacle.lock().unwrap() = Some("the door is locked");
    let _ = fixture.round().await;
    fixture.provider.objects.lock().unwrap().clear();
    let status = fixture.round().await;
    assert_eq!((status.quarantined, status.left_quarantine), (0, 1));
    assert_eq!(fixture.state().await, ResourceState::Gone);
}

/// Adds two objects with one name to the provider, as a create and a copy of it leave them.
fn add_twins(provider: &FakeProvider, resource: ResourceId) {
    provider.add_object(resource);
    let mut objects = provider.objects.lock().unwrap();
    let twin = Observed { id: "twin".to_owned(), ..objects[0].clone() };
    objects.push(twin);
}

#[tokio::test]
async fn of_several_objects_that_fit_one_lost_create_none_is_released() {
    let fixture = RoundFixture::set(FakeProvider::default()).await;
    add_twins(&fixture.provider, fixture.resource);
    for _ in 0..3 {
        let status = fixture.round().await;
        assert_eq!((status.released(), status.is_left()), (0, true));
        assert_eq!(fixture.provider.objects.lock().unwrap().len(), 2);
        fixture.leave().await;
    }
}

#[tokio::test]
async fn of_several_objects_that_fit_a_failed_create_none_is_released() {
    for class in [ErrorClass::Denied, ErrorClass::Transient] {
        let fixture = RoundFixture::set(FakeProvider::default()).await;
        let providers = Providers::new(vec![fixture.provider.clone()]);
        let supervisor = Supervisor::new(fixture.ledger.clone(), providers, "test").unwrap();
        let request = Request::new(creel_docker::NAME, Spec::Container(ContainerSpec::default()));
        let provider = Arc::clone(&fixture.provider);
        let create = move |request: CreateRequest| async move {
            add_twins(&provider, request.resource);
            Err(ProviderError { class, ..FakeProvider::denied("no answer") })
        };
        supervisor.create_with(request, create).await.unwrap_err();
        assert_eq!(fixture.provider.objects.lock().unwrap().len(), 2, "{class}");
    }
}
