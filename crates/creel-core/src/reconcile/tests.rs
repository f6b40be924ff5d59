//! Rounds against a provider that is made up, under a clock that is turned by hand.

use std::sync::Mutex;

use async_trait::async_trait;
use tempfile::TempDir;

use super::*;
use crate::clock::ManualClock;
use crate::id::ResourceId;
use crate::labels;
use crate::ledger::{Event, Intent, OnOwnerDeath, State};
use crate::provider::{
    ContainerSpec, CreateOrder, Kind, Marks, Provider, ReleaseMode, Released, Spec,
};
use crate::run::records::tests::{a_dead_owner, me};
use crate::scope::{Request, Supervisor};

const WINDOW: Duration = Duration::from_secs(600);
const DAY_MS: i64 = 86_400_000;

/// A provider with the objects that a test puts into it.
#[derive(Debug, Default)]
struct Shelf {
    objects: Mutex<Vec<Observed>>,
    /// What releases are refused with, if they are.
    obstacle: Mutex<Option<&'static str>>,
    /// Whether callers make the objects themselves.
    local: bool,
}

impl Shelf {
    fn land(&self, resource: ResourceId) {
        let id = resource.object_name();
        let labels = [(labels::RESOURCE, resource.to_string())].into();
        let object = Observed::known_by_id(ProviderName::Docker, Kind::Container, id);
        self.objects.lock().unwrap().push(Observed { labels, ..object });
    }

    fn denied(message: &str) -> ProviderError {
        ProviderError {
            provider: ProviderName::Docker,
            operation: "release".to_owned(),
            message: message.to_owned(),
            class: ErrorClass::Denied,
            retry_after: None,
        }
    }
}

type Answer<T> = crate::provider::Result<T>;

#[async_trait]
impl Provider for Shelf {
    fn name(&self) -> ProviderName {
        ProviderName::Docker
    }

    fn address(&self) -> String {
        "shelf".to_owned()
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Container]
    }

    fn creates_end_with_caller(&self) -> bool {
        self.local
    }

    async fn identity(&self) -> Answer<String> {
        Ok("shelf".to_owned())
    }

    async fn list(&self, _kinds: &[Kind]) -> Answer<Vec<Observed>> {
        Ok(self.objects.lock().unwrap().clone())
    }

    async fn inspect(&self, _kind: Kind, id: &str) -> Answer<Option<Observed>> {
        Ok(self.objects.lock().unwrap().iter().find(|object| object.id == id).cloned())
    }

    async fn find(&self, marks: &Marks) -> Answer<Vec<Observed>> {
        let objects = self.objects.lock().unwrap();
        Ok(objects.iter().filter(|object| object.name == marks.name).cloned().collect())
    }

    async fn create(&self, _order: &CreateOrder) -> Answer<String> {
        Err(Self::denied("nothing is made here"))
    }

    async fn stop(&self, _kind: Kind, _id: &str, _timeout: Duration) -> Answer<()> {
        Ok(())
    }

    async fn release(&self, _kind: Kind, id: &str, _mode: ReleaseMode) -> Answer<Released> {
        if let Some(obstacle) = *self.obstacle.lock().unwrap() {
            return Err(Self::denied(obstacle));
        }
        self.objects.lock().unwrap().retain(|object| object.id != id);
        Ok(Released::Done)
    }
}

/// A ledger with one unanswered create of an owner that has died.
struct Scene {
    _home: TempDir,
    clock: Arc<ManualClock>,
    ledger: Ledger,
    shelf: Arc<Shelf>,
    resource: ResourceId,
}

impl Scene {
    async fn set(shelf: Shelf) -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(20_000 * DAY_MS));
        let ledger = Ledger::open_with_clock(home.path(), clock.clone()).await.unwrap();
        let (resource, owner) = (ResourceId::new(), a_dead_owner());
        let intent = Intent {
            id: resource,
            run: None,
            provider: ProviderName::Docker,
            kind: Kind::Container,
            name: resource.object_name(),
            labels: labels::of_resource(&resource, &ledger.id(), &owner.owner, None),
            owner,
            on_owner_death: OnOwnerDeath::Release,
            lease: Duration::from_secs(60),
        };
        ledger.record_intent(&intent).await.unwrap();
        Self { _home: home, clock, ledger, shelf: Arc::new(shelf), resource }
    }

    async fn round(&self) -> Status {
        let providers = Providers::new(vec![self.shelf.clone()]);
        let reconciler = Reconciler::new(self.ledger.clone(), providers, me());
        reconciler.with_intent_window(WINDOW).round().await.unwrap()
    }

    /// Makes the record that of a process that has ended, as every reconciler does at last.
    async fn leave(&self) {
        let event = Event::OwnerChanged { owner: a_dead_owner() };
        self.ledger.append(&[(self.resource, event)]).await.unwrap();
    }

    async fn state(&self) -> State {
        self.ledger.record(self.resource).await.unwrap().unwrap().state
    }

    async fn event_count(&self) -> usize {
        self.ledger.history(self.resource).await.unwrap().len()
    }
}

#[tokio::test]
async fn a_clock_a_day_ahead_closes_no_unanswered_create_and_its_late_object_is_released() {
    for jump in [DAY_MS, -DAY_MS] {
        let scene = Scene::set(Shelf::default()).await;
        scene.clock.jump_wall(jump);
        let status = scene.round().await;
        assert_eq!((status.open_intents, status.closed_intents), (1, 0));
        assert!(!status.is_settled());
        let waiting = &status.waiting[0];
        let left_ms = waiting.until.as_millisecond() - scene.clock.now().wall_ms;
        assert_eq!((waiting.resource, left_ms), (scene.resource, 600_000));
        scene.shelf.land(scene.resource);
        let status = scene.round().await;
        assert_eq!((status.released(), status.open_intents), (1, 0));
        assert!(status.is_settled());
        assert_eq!(scene.state().await, State::Gone);
    }
}

#[tokio::test]
async fn a_window_during_which_the_clock_jumped_is_granted_once_more() {
    let scene = Scene::set(Shelf::default()).await;
    scene.clock.jump_wall(DAY_MS);
    scene.clock.advance(WINDOW);
    assert_eq!(scene.round().await.open_intents, 1);
    let history = scene.ledger.history(scene.resource).await.unwrap();
    assert!(matches!(history.last().unwrap().event, Event::SearchRestarted { .. }));
    // A round that grants nothing writes nothing.
    scene.clock.advance(WINDOW / 2);
    assert_eq!(scene.round().await.open_intents, 1);
    assert_eq!(scene.event_count().await, history.len());
    scene.clock.advance(WINDOW / 2);
    let status = scene.round().await;
    assert_eq!((status.open_intents, status.closed_intents), (0, 1));
    assert_eq!(scene.ledger.check().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn nothing_is_waited_for_where_the_dead_caller_makes_the_object_itself() {
    let scene = Scene::set(Shelf { local: true, ..Shelf::default() }).await;
    let status = scene.round().await;
    assert_eq!((status.open_intents, status.closed_intents), (0, 1));
    assert!(status.is_settled());
    assert_eq!(scene.state().await, State::Gone);
}

#[tokio::test]
async fn an_heir_knows_as_well_that_the_dead_caller_makes_nothing_any_more() {
    let scene = Scene::set(Shelf { local: true, ..Shelf::default() }).await;
    let providers = Providers::new(vec![scene.shelf.clone()]);
    let reconciler = Reconciler::new(scene.ledger.clone(), providers, me());
    let status = reconciler.inherit(&a_dead_owner().owner).await.unwrap();
    assert_eq!((status.open_intents, status.closed_intents), (0, 1));
}

#[tokio::test]
async fn what_is_quarantined_is_tried_once_by_every_round_and_goes_when_the_obstacle_has_gone() {
    let scene = Scene::set(Shelf::default()).await;
    scene.shelf.land(scene.resource);
    *scene.shelf.obstacle.lock().unwrap() = Some("the door is locked");
    let status = scene.round().await;
    assert_eq!((status.quarantined, status.items[0].result), (0, Outcome::Quarantined));
    // While its owner lives it is that one's to try again.
    assert_eq!(scene.round().await.items.len(), 0);
    scene.leave().await;

    // The same reason again: tried, and nothing new is on record.
    let events = scene.event_count().await;
    let status = scene.round().await;
    assert_eq!((status.quarantined, status.items[0].result), (1, Outcome::Quarantined));
    assert_eq!(scene.event_count().await, events);

    *scene.shelf.obstacle.lock().unwrap() = Some("the key is lost");
    assert!(scene.round().await.is_left());
    assert_eq!(scene.state().await.reason(), Some(&"the key is lost".into()));

    *scene.shelf.obstacle.lock().unwrap() = None;
    let status = scene.round().await;
    assert_eq!((status.quarantined, status.left_quarantine, status.released()), (0, 1, 1));
    assert!(status.is_settled());
    assert_eq!(scene.state().await, State::Gone);
    assert_eq!(scene.ledger.check().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn what_left_quarantine_by_itself_is_closed() {
    let scene = Scene::set(Shelf::default()).await;
    scene.shelf.land(scene.resource);
    *scene.shelf.obstacle.lock().unwrap() = Some("the door is locked");
    let _ = scene.round().await;
    scene.shelf.objects.lock().unwrap().clear();
    let status = scene.round().await;
    assert_eq!((status.quarantined, status.left_quarantine), (0, 1));
    assert_eq!(scene.state().await, State::Gone);
}

/// Puts two objects with one name into the provider, as a create and a copy of it leave them.
fn land_twins(shelf: &Shelf, resource: ResourceId) {
    shelf.land(resource);
    let mut objects = shelf.objects.lock().unwrap();
    let twin = Observed { id: "twin".to_owned(), ..objects[0].clone() };
    objects.push(twin);
}

#[tokio::test]
async fn of_several_objects_that_fit_one_lost_create_none_is_released() {
    let scene = Scene::set(Shelf::default()).await;
    land_twins(&scene.shelf, scene.resource);
    for _ in 0..3 {
        let status = scene.round().await;
        assert_eq!((status.released(), status.is_left()), (0, true));
        assert_eq!(scene.shelf.objects.lock().unwrap().len(), 2);
        scene.leave().await;
    }
}

#[tokio::test]
async fn of_several_objects_that_fit_a_failed_create_none_is_released() {
    for class in [ErrorClass::Denied, ErrorClass::Transient] {
        let scene = Scene::set(Shelf::default()).await;
        let providers = Providers::new(vec![scene.shelf.clone()]);
        let supervisor = Supervisor::new(scene.ledger.clone(), providers, "test").unwrap();
        let request = Request::new(ProviderName::Docker, Spec::Container(ContainerSpec::default()));
        let shelf = Arc::clone(&scene.shelf);
        let create = move |order: CreateOrder| async move {
            land_twins(&shelf, order.resource);
            Err(ProviderError { class, ..Shelf::denied("no answer") })
        };
        supervisor.create_with(request, create).await.unwrap_err();
        assert_eq!(scene.shelf.objects.lock().unwrap().len(), 2, "{class}");
    }
}
