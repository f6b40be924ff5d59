//! Tests random interleavings of our actions, crashes and actions of others on a model engine.
//!
//! No foreign object is ever released, and every release is explained by the ledger. Only the
//! engine is a model. Search, decisions, comparison, release, audit and ledger are the real ones.

mod engine;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use creel_ledger::{Event, Intent, Ledger, OnOwnerDeath, OwnerRecord, RecordFilter};
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::retry::RetryPolicy;
use creel_model::provider::{
    ContainerSpec, CreateRequest, ErrorClass, Identity, Kind, NetworkSpec, Provider, Providers,
    Spec, VolumeSpec,
};
use engine::{EngineModel, KINDS, ModelState, NAMES, OtherUsers, REFERENCES, Random, failed};
use witness::{ResponseCounts, assert_audited};

use crate::pipeline::{Listing, Pipeline, Selection, Survey};
use crate::reap::ReapOptions;
use crate::scope::{Request, Supervisor, identity_after_create};
use crate::select::Selector;

use super::Reconciler;

/// How many interleavings share a ledger. A new one each time would only test SQLite.
const SHARED: u64 = 100;

/// Returns the owner of the resources that a crash left. Each boot has its own.
fn dead_owner(boot: &str) -> OwnerRecord {
    let mut owner = OwnerRecord::this_process("killed").unwrap();
    owner.owner.boot = boot.to_owned();
    owner
}

fn options() -> ReapOptions {
    let retry = RetryPolicy {
        retries: 1,
        initial: Duration::from_millis(1),
        deadline: Duration::from_millis(500),
        ..Default::default()
    };
    ReapOptions { retry, ..ReapOptions::default() }
}

/// When a process that creates a thing dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CrashTime {
    /// Before the create was sent.
    NotSent,
    /// Before the response arrived.
    NotAnswered,
    /// Before the response arrived, with a recorded release request.
    NotAnsweredReleasing,
    /// Before the response was recorded.
    NotRecorded,
    /// After the release request was recorded, before it was sent.
    Releasing,
    /// Later.
    Holding,
}

impl CrashTime {
    fn draw(random: &mut Random) -> Self {
        match random.below(12) {
            0 => Self::NotSent,
            1 => Self::NotAnswered,
            2 => Self::NotAnsweredReleasing,
            3 => Self::NotRecorded,
            4 | 5 => Self::Releasing,
            _ => Self::Holding,
        }
    }
}

/// One interleaving.
struct Interleaving {
    ledger: Ledger,
    model: Arc<EngineModel>,
    random: Random,
    owner: OwnerRecord,
}

impl Interleaving {
    fn new(ledger: Ledger, seed: u64, acts: u32) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let state = ModelState::new(random.below(2) == 0);
        let has_faults = acts > 0;
        let other_users = OtherUsers { random: Random(random.0 ^ 0x5DEE_CE66), acts, has_faults };
        let model = Arc::new(EngineModel::new(state, other_users, ledger.clone()));
        Self { ledger, model, random, owner: dead_owner("another boot") }
    }

    /// Acquires a thing, and crashes at a random time.
    async fn create_resource(&mut self) {
        let crash = CrashTime::draw(&mut self.random);
        let kind = KINDS[self.random.below(KINDS.len())];
        let resource = ResourceId::new();
        let name = match (kind, self.random.below(2)) {
            (Kind::Image, _) => REFERENCES[self.random.below(REFERENCES.len())].to_owned(),
            (_, 0) => NAMES[self.random.below(NAMES.len())].to_owned(),
            _ => resource.object_name(),
        };
        let ledger = self.ledger.id();
        let labels = labels::of_resource(&resource, &ledger, &self.owner.owner, None);
        let intent = self.intent(resource, kind, &name, labels.clone());
        self.ledger.record_intent(&intent).await.unwrap();
        if crash == CrashTime::NotSent {
            return;
        }
        self.model.other_users_act();
        let created = match kind {
            Kind::Image => self.build(&name),
            _ => self.model.state.lock().unwrap().make(kind, &name, labels, false),
        };
        let Some(object) = created else {
            let evidence = "refused".to_owned();
            let never = Event::NeverCreated { evidence: evidence.into() };
            self.ledger.append(&[(resource, never)]).await.unwrap();
            return;
        };
        let mut events = Vec::new();
        if !matches!(crash, CrashTime::NotAnswered | CrashTime::NotAnsweredReleasing) {
            let identity = self.identity(kind, resource, &object).await;
            if crash == CrashTime::NotRecorded {
                return;
            }
            if identity.is_some() {
                self.model.state.lock().unwrap().note_recorded(kind, &object);
            }
            events.push((resource, Event::Created { object, identity }));
        }
        if matches!(crash, CrashTime::NotAnsweredReleasing | CrashTime::Releasing) {
            events.push((resource, Event::ReleaseRequested { why: "its end".into() }));
        }
        self.ledger.append(&events).await.unwrap();
    }

    /// Rebuilds a reference of another user, as a guarded build does, and crashes at a random time.
    async fn rebuild_reference(&mut self, crash: CrashTime) {
        let reference = REFERENCES[self.random.below(REFERENCES.len())];
        let before = self.model.state.lock().unwrap().reference_of_another_user(reference);
        let resource = ResourceId::new();
        let ledger = self.ledger.id();
        let mut labels = labels::of_resource(&resource, &ledger, &self.owner.owner, None);
        labels.insert(labels::REPLACED_IMAGE, before.clone());
        let intent = self.intent(resource, Kind::Image, reference, labels);
        self.ledger.record_intent(&intent).await.unwrap();
        if crash == CrashTime::NotSent {
            return;
        }
        self.model.other_users_act();
        let (image, identity) = self.move_reference(reference, before);
        if crash < CrashTime::Releasing {
            return;
        }
        let object = reference.to_owned();
        let created = Event::Created { object, identity: Some(identity) };
        self.ledger.append(&[(resource, created)]).await.unwrap();
        self.adopt(&image).await;
        if crash == CrashTime::Releasing {
            let requested = Event::ReleaseRequested { why: "its end".into() };
            self.ledger.append(&[(resource, requested)]).await.unwrap();
        }
    }

    /// Moves a reference to a new image. Returns the image and the identity of the reference.
    fn move_reference(&mut self, reference: &str, before: String) -> (String, Identity) {
        let mut state = self.model.state.lock().unwrap();
        // A rebuild has the same base as before, or another one, or none.
        let parent = self.random.pick(&state.image_ids()).cloned();
        let parent = parent.filter(|_| self.random.below(2) == 0);
        let image = state.build(parent, false);
        state.tag(reference, &image, false);
        let identity = identity_of_image(&state, reference, Some(before));
        (image, identity.expect("it was just tagged"))
    }

    /// Records an image of ours by its id.
    async fn adopt(&self, image: &str) {
        let resource = ResourceId::new();
        let intent = self.intent(resource, Kind::Image, image, Labels::new());
        self.ledger.record_intent(&intent).await.unwrap();
        let identity = Some(Identity::nameless_image(image));
        let created = Event::Created { object: image.to_owned(), identity };
        self.ledger.append(&[(resource, created)]).await.unwrap();
    }

    /// Creates through a supervisor, and releases the result.
    ///
    /// The create succeeds, fails or loses its response, with or without an effect. The supervisor
    /// undoes the effect of a failed create.
    async fn create_supervised(&mut self) {
        let (kind, spec) = match self.random.below(3) {
            0 => (Kind::Container, Spec::Container(ContainerSpec::default())),
            1 => (Kind::Network, Spec::Network(NetworkSpec::default())),
            _ => (Kind::Volume, Spec::Volume(VolumeSpec::default())),
        };
        let (is_created, response) = (self.random.below(4) > 0, self.random.below(3));
        let model = Arc::clone(&self.model);
        let make = move |request: CreateRequest| async move {
            model.other_users_act();
            let make = || {
                let mut state = model.state.lock().unwrap();
                state.make(kind, &request.name, request.labels.clone(), false)
            };
            let created = is_created.then(make).flatten();
            model.other_users_act();
            match (response, created) {
                (0, Some(id)) => Ok(id),
                (1, _) => Err(failed(ErrorClass::Denied, "refused")),
                _ => Err(failed(ErrorClass::Transient, "no answer")),
            }
        };
        let supervisor = Supervisor::new(self.ledger.clone(), self.providers(), "create").unwrap();
        let supervisor = supervisor.with_options(options());
        let request = Request::new(creel_docker::NAME, spec);
        if let Ok(held) = supervisor.create_with(request, make).await {
            // A resource that could not be released stays on record.
            let _ = supervisor.release(held).await;
        }
    }

    /// Acquires a thing and records its id.
    async fn create_recorded(&mut self, resource: ResourceId, kind: Kind, name: &str) {
        let ledger = self.ledger.id();
        let labels = labels::of_resource(&resource, &ledger, &self.owner.owner, None);
        let intent = self.intent(resource, kind, name, labels.clone());
        self.ledger.record_intent(&intent).await.unwrap();
        let object = self.model.state.lock().unwrap().make(kind, name, labels, false).unwrap();
        let identity = self.identity(kind, resource, &object).await;
        let created = Event::Created { object, identity };
        self.ledger.append(&[(resource, created)]).await.unwrap();
    }

    fn intent(&self, id: ResourceId, kind: Kind, name: &str, labels: Labels) -> Intent {
        Intent {
            id,
            run: None,
            provider: creel_docker::NAME,
            kind,
            name: name.to_owned(),
            labels,
            owner: self.owner.clone(),
            on_owner_death: OnOwnerDeath::Release,
            lease: Duration::from_secs(60),
        }
    }

    /// Builds an image upon another one or from nothing, with or without a name, or names an
    /// existing image. A name that is already taken is left alone.
    fn build(&mut self, reference: &str) -> Option<String> {
        let mut state = self.model.state.lock().unwrap();
        let existing = self.random.pick(&state.image_ids()).cloned();
        let method = self.random.below(5);
        if method < 2 {
            return Some(state.build(existing.filter(|_| method == 0), false));
        }
        if state.inspect(Kind::Image, reference).is_some() {
            return None;
        }
        let image = match existing {
            Some(image) if method == 2 => image,
            parent => state.build(parent.filter(|_| method == 3), false),
        };
        state.tag(reference, &image, false);
        Some(reference.to_owned())
    }

    /// Reads the identity of an object that was just created.
    ///
    /// The identity of an image comes with the response, so no other user acts in between.
    async fn identity(&self, kind: Kind, resource: ResourceId, object: &str) -> Option<Identity> {
        if kind.has_lasting_ids() {
            return Some(Identity::id(object));
        }
        if kind != Kind::Image {
            let seen = self.model.inspect(kind, object).await.unwrap()?;
            return identity_after_create(resource, &seen);
        }
        identity_of_image(&self.model.state.lock().unwrap(), object, None)
    }

    fn providers(&self) -> Providers {
        let model: Arc<dyn Provider> = Arc::clone(&self.model) as Arc<dyn Provider>;
        Providers::new(vec![model])
    }

    /// Cleans up with one of creel's methods.
    async fn clean_up(&mut self) {
        self.clean_up_as(OwnerRecord::this_process("reconcile").unwrap()).await;
    }

    /// Begins to clean up, and dies before or after one of its requests.
    async fn die_cleaning_up(&mut self) {
        let model = Arc::clone(&self.model);
        model.die_after(Some(self.random.below(20)));
        tokio::select! {
            () = self.clean_up_as(dead_owner("the boot of a cleaner")) => {}
            () = model.death.notified() => {}
        }
        model.die_after(None);
    }

    async fn clean_up_as(&mut self, me: OwnerRecord) {
        let window = if self.random.below(2) == 0 { 0 } else { 600 };
        let reconciler = Reconciler::new(self.ledger.clone(), self.providers(), me)
            .with_intent_window(Duration::from_secs(window))
            .with_options(options());
        match self.random.below(5) {
            0 => drop(reconciler.finish().await.unwrap()),
            1 => drop(reconciler.inherit(&self.owner.owner).await.unwrap()),
            2 => self.sweep_ours().await,
            3 => self.remove_records().await,
            _ => drop(reconciler.round().await.unwrap()),
        }
        let _ = reconciler.round().await.unwrap();
        let _ = reconciler.resume().await.unwrap();
    }

    /// Releases what a sweep of our own objects selects.
    async fn sweep_ours(&self) {
        let pipeline = self.pipeline();
        let listing = Listing::read(&self.providers(), &[]).await;
        let mut survey = Survey::new(listing, Some(&self.ledger)).await.unwrap();
        let ours = [Selector { owned: true, ..Selector::default() }];
        let selection = Selection { selectors: &ours, findings: None, force: false };
        let planned = pipeline.plan(&mut survey, selection).await.unwrap();
        let _ = pipeline.release(planned.uncapped(), &()).await;
    }

    /// Releases records one by one, as `creel rm` does with those it is given.
    async fn remove_records(&mut self) {
        let mut open = self.ledger.records(&RecordFilter::open()).await.unwrap();
        open.reverse();
        let count = self.random.below(3);
        let pipeline = self.pipeline();
        for record in open.iter().take(1 + count) {
            let _ = pipeline.release_record(record.id, "named").await;
        }
    }

    fn pipeline(&self) -> Pipeline {
        Pipeline::new(self.providers(), Some(self.ledger.clone())).with_options(options())
    }

    fn foreign_released(&self) -> Vec<String> {
        self.model.state.lock().unwrap().foreign_released.clone()
    }
}

/// Returns the identity of an image or of a reference that named another image before.
fn identity_of_image(state: &ModelState, object: &str, before: Option<String>) -> Option<Identity> {
    let mut identity = state.inspect(Kind::Image, object)?.identity()?;
    if let Identity::Tag { image, image_is_ours, .. } = &mut identity {
        *image_is_ours = state.is_ours(image);
    }
    Some(identity.of_our_reference(before))
}

/// Opens a ledger where writes are cheap.
async fn open_ledger() -> (tempfile::TempDir, Ledger) {
    let memory = std::path::Path::new("/dev/shm");
    let home = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let home = home.unwrap();
    let ledger = Ledger::open(home.path()).await.unwrap();
    (home, ledger)
}

/// What interleavings came to.
#[derive(Debug, Default, Clone, Copy)]
struct Summary {
    /// The number of actions by other users.
    acts: u64,
    /// The number of references that were put back on their old image.
    restored: u64,
}

/// Runs interleavings.
async fn run_all(seeds: std::ops::Range<u64>) -> Summary {
    let mut summary = Summary::default();
    let mut shared = open_ledger().await;
    let mut responses = ResponseCounts::new();
    for seed in seeds {
        if seed % SHARED == 0 {
            assert_audited(&shared.1, &std::mem::take(&mut responses)).await;
            shared = open_ledger().await;
        }
        let most = u32::try_from(seed % 12).unwrap();
        let mut interleaving = Interleaving::new(shared.1.clone(), seed, most);
        for _ in 0..1 + interleaving.random.below(3) {
            match interleaving.random.below(5) {
                0 => interleaving.create_supervised().await,
                1 => {
                    let crash = CrashTime::draw(&mut interleaving.random);
                    interleaving.rebuild_reference(crash).await;
                }
                _ => interleaving.create_resource().await,
            }
            interleaving.model.other_users_act();
        }
        if interleaving.random.below(2) == 0 {
            interleaving.die_cleaning_up().await;
            interleaving.model.other_users_act();
        }
        interleaving.clean_up().await;
        let released = interleaving.foreign_released();
        assert!(released.is_empty(), "seed {seed}: released {released:?}");
        let unexplained = interleaving.model.witness.unexplained();
        assert!(unexplained.is_empty(), "seed {seed}: no evidence on record for {unexplained:?}");
        interleaving.model.witness.add_responses(&mut responses);
        summary.acts += u64::from(most);
        summary.restored += interleaving.model.state.lock().unwrap().restored_count;
    }
    assert_audited(&shared.1, &responses).await;
    summary
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn no_foreign_object_is_released_in_any_interleaving() {
    let summary = runtime().block_on(run_all(1..3001));
    assert!(summary.restored > 100, "references were hardly ever put back: {summary:?}");
}

/// Rebuilds a reference of another user, lets that user act, and cleans up until nothing changes.
async fn after_a_rebuild(seed: u64, act: impl FnOnce(&mut ModelState, &Rebuilt)) -> Rebuilt {
    let (_home, ledger) = open_ledger().await;
    let mut interleaving = Interleaving::new(ledger, seed, 0);
    interleaving.rebuild_reference(CrashTime::Holding).await;
    let record = interleaving.ledger.records(&RecordFilter::open()).await.unwrap().remove(0);
    let mut rebuilt = Rebuilt {
        before: record.labels.get(labels::REPLACED_IMAGE).unwrap().to_owned(),
        reference: record.name,
        ours: String::new(),
        named: None,
        is_ours_left: false,
    };
    {
        let mut state = interleaving.model.state.lock().unwrap();
        rebuilt.ours = state.image_of(&rebuilt.reference).unwrap().to_owned();
        act(&mut state, &rebuilt);
    }
    interleaving.clean_up().await;
    interleaving.clean_up().await;
    assert_eq!(interleaving.foreign_released(), [""; 0]);
    let state = interleaving.model.state.lock().unwrap();
    rebuilt.named = state.image_of(&rebuilt.reference).map(str::to_owned);
    rebuilt.is_ours_left = state.image_ids().contains(&rebuilt.ours);
    rebuilt
}

/// A reference of another user that we rebuilt.
#[derive(Debug)]
struct Rebuilt {
    reference: String,
    /// The image that it named before.
    before: String,
    /// Our image.
    ours: String,
    /// The image that it names after the clean-up.
    named: Option<String>,
    /// Whether our image still exists then.
    is_ours_left: bool,
}

#[test]
fn a_rebuilt_reference_goes_back_to_its_old_image() {
    runtime().block_on(async {
        for seed in 1..50 {
            let rebuilt = after_a_rebuild(seed, |_, _| {}).await;
            assert_eq!(rebuilt.named.as_ref(), Some(&rebuilt.before), "seed {seed}");
            assert!(!rebuilt.is_ours_left, "seed {seed}: {rebuilt:?}");
        }
    });
}

#[test]
fn a_rebuilt_reference_that_was_moved_on_stays_where_it_is() {
    runtime().block_on(async {
        for seed in 1..50 {
            let mut theirs = String::new();
            let rebuilt = after_a_rebuild(seed, |state, rebuilt| {
                theirs = state.build(None, true);
                state.tag(&rebuilt.reference, &theirs, true);
            });
            let rebuilt = rebuilt.await;
            assert_eq!(rebuilt.named.as_ref(), Some(&theirs), "seed {seed}");
            assert!(!rebuilt.is_ours_left, "seed {seed}: {rebuilt:?}");
        }
    });
}

#[test]
fn a_rebuilt_reference_whose_old_image_is_gone_goes_with_ours() {
    runtime().block_on(async {
        for seed in 1..50 {
            let mut is_removed = false;
            let rebuilt = after_a_rebuild(seed, |state, rebuilt| {
                is_removed = state.remove_for_another_user(&rebuilt.before);
            });
            let rebuilt = rebuilt.await;
            // It stays where the rebuilt image is built upon it.
            let expected = (!is_removed).then_some(&rebuilt.before);
            assert_eq!(rebuilt.named.as_ref(), expected, "seed {seed}");
            assert!(!rebuilt.is_ours_left, "seed {seed}: {rebuilt:?}");
        }
    });
}

#[test]
fn a_copy_of_a_released_object_is_kept() {
    runtime().block_on(async {
        let kinds = [Kind::Container, Kind::Network, Kind::Volume];
        for (kind, is_named) in kinds.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
            let (_home, ledger) = open_ledger().await;
            let mut interleaving = Interleaving::new(ledger, 7, 0);
            interleaving.model.state.lock().unwrap().make_times_stable();
            let resource = ResourceId::new();
            let name = if is_named { "web".to_owned() } else { resource.object_name() };
            interleaving.create_recorded(resource, kind, &name).await;
            let record = interleaving.ledger.record(resource).await.unwrap().unwrap();
            interleaving.clean_up().await;
            assert_eq!(interleaving.model.state.lock().unwrap().ours(), [""; 0]);
            let labels = record.labels.clone();
            interleaving.model.state.lock().unwrap().make(kind, &name, labels, true).unwrap();
            for _ in 0..3 {
                interleaving.clean_up().await;
            }
            assert_eq!(interleaving.foreign_released(), [""; 0], "{kind}");
        }
    });
}

#[test]
fn without_other_users_everything_with_an_identity_is_released() {
    runtime().block_on(async {
        for seed in 1..200 {
            let (_home, ledger) = open_ledger().await;
            let mut interleaving = Interleaving::new(ledger, seed, 0);
            interleaving.create_resource().await;
            interleaving.clean_up().await;
            interleaving.clean_up().await;
            let left = interleaving.model.state.lock().unwrap().ours();
            // Without a response, nothing proves who owns a reference.
            let unproven = left.iter().all(|one| REFERENCES.contains(&one.as_str()));
            assert!(unproven, "seed {seed}: left {left:?}");
        }
    });
}

mod torture {
    mod identity {
        /// The number of interleavings.
        const INTERLEAVINGS: u64 = 100_000;
        /// Different from the seeds of the quick test.
        const FIRST_SEED: u64 = 1_000_000;

        #[test]
        fn no_foreign_object_is_released_in_many_interleavings() {
            let threads =
                std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
            let share = INTERLEAVINGS.div_ceil(threads);
            let (acts, restored) = std::thread::scope(|scope| {
                let begin = |thread: u64| {
                    let first = thread * share;
                    let end = INTERLEAVINGS.min(first + share);
                    let seeds = FIRST_SEED + first..FIRST_SEED + end;
                    scope.spawn(|| super::super::runtime().block_on(super::super::run_all(seeds)))
                };
                let threads: Vec<_> = (0..threads).map(begin).collect();
                let summaries = threads.into_iter().map(|thread| thread.join().unwrap());
                summaries.fold((0, 0), |(acts, restored), one| {
                    (acts + one.acts, restored + one.restored)
                })
            });
            println!(
                "report: {INTERLEAVINGS} interleavings of our acts, crashes and up to {acts} acts \
                 of others (create, remove, rename, retag, build, copy labels, prune): nothing of \
                 theirs was released"
            );
            println!(
                "report: every release had its evidence on record before it was sent, and a row \
                 in the audit after it; {restored} references went back to their old image"
            );
        }
    }
}
