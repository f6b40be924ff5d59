//! Any interleaving of our acts, crashes and acts of others on a model engine: nothing of
//! somebody else's is ever released.
//!
//! Only the engine is a model. Search, decisions, comparison, release, audit and
//! ledger are the real ones.

mod engine;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::id::ResourceId;
use crate::labels::{self, Labels};
use crate::ledger::{Event, Intent, Ledger, OnOwnerDeath, OwnerRecord, RecordFilter};
use crate::plan::{self, PlanInput};
use crate::provider::{Identity, Kind, Provider, ProviderName, Providers};
use crate::reap::{ReapOptions, Reaper};
use crate::retry::RetryPolicy;
use crate::scope::identity_after_create;
use crate::select::{Roll, Selector};

use super::Reconciler;
use engine::{KINDS, Model, NAMES, Others, REFERENCES, Random, State};

/// How many interleavings share a ledger; a fresh one each would only test SQLite.
const SHARED: u64 = 100;

/// Returns the owner of what a crash left.
fn dead_owner() -> OwnerRecord {
    let mut owner = OwnerRecord::this_process("killed").unwrap();
    owner.owner.boot = "another boot".to_owned();
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

/// One interleaving.
struct Story {
    ledger: Ledger,
    model: Arc<Model>,
    random: Random,
    owner: OwnerRecord,
}

impl Story {
    fn new(ledger: Ledger, seed: u64, acts: u32) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let state = State::new(random.below(2) == 0);
        let others = Others { random: Random(random.0 ^ 0x5DEE_CE66), acts };
        let model = Arc::new(Model::new(state, others));
        Self { ledger, model, random, owner: dead_owner() }
    }

    /// Takes a thing, and crashes somewhere on the way in one of three cases.
    async fn take(&mut self) {
        let crash = self.random.below(9);
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
        if crash == 0 {
            return;
        }
        self.model.others_act();
        let made = match kind {
            Kind::Image => self.build(&name),
            _ => self.model.state.lock().unwrap().make(kind, &name, labels, false),
        };
        let Some(object) = made else {
            let evidence = "refused".to_owned();
            let never = Event::NeverCreated { evidence: evidence.into() };
            self.ledger.append(&[(resource, never)]).await.unwrap();
            return;
        };
        if crash == 1 {
            return;
        }
        let identity = self.identity(kind, resource, &object).await;
        if crash != 2 {
            if identity.is_some() {
                self.model.state.lock().unwrap().note_recorded(kind, &object);
            }
            let created = Event::Created { object, identity };
            self.ledger.append(&[(resource, created)]).await.unwrap();
        }
    }

    /// Takes a thing and records its id.
    async fn take_recorded(&mut self, kind: Kind, name: &str) -> ResourceId {
        let resource = ResourceId::new();
        let ledger = self.ledger.id();
        let labels = labels::of_resource(&resource, &ledger, &self.owner.owner, None);
        let intent = self.intent(resource, kind, name, labels.clone());
        self.ledger.record_intent(&intent).await.unwrap();
        let object = self.model.state.lock().unwrap().make(kind, name, labels, false).unwrap();
        let identity = self.identity(kind, resource, &object).await;
        let created = Event::Created { object, identity };
        self.ledger.append(&[(resource, created)]).await.unwrap();
        resource
    }

    fn intent(&self, id: ResourceId, kind: Kind, name: &str, labels: Labels) -> Intent {
        Intent {
            id,
            run: None,
            provider: ProviderName::Docker,
            kind,
            name: name.to_owned(),
            labels,
            owner: self.owner.clone(),
            on_owner_death: OnOwnerDeath::Release,
            lease: Duration::from_secs(60),
        }
    }

    /// Builds an image, with a name or without; a name that somebody has is left alone.
    fn build(&mut self, reference: &str) -> Option<String> {
        let image = format!("sha256:{}", self.random.below(1_000_000));
        let mut state = self.model.state.lock().unwrap();
        if self.random.below(3) == 0 {
            state.build(&image);
            return Some(image);
        }
        if state.look(Kind::Image, reference).is_some() {
            return None;
        }
        state.tag(reference, &image, false);
        Some(reference.to_owned())
    }

    /// Reads the identity of what was just made. That of an image comes with the answer, so
    /// nobody else acts in between.
    async fn identity(&self, kind: Kind, resource: ResourceId, object: &str) -> Option<Identity> {
        if kind.has_lasting_ids() {
            return Some(Identity::id(object));
        }
        if kind == Kind::Image {
            let seen = self.model.state.lock().unwrap().look(kind, object)?;
            return seen.identity.map(|identity| match identity {
                Identity::Tag { reference, image, tagged_at, tags, replaces, .. } => {
                    Identity::Tag {
                        reference,
                        image,
                        tagged_at,
                        image_is_ours: true,
                        tags,
                        replaces,
                    }
                }
                other => other,
            });
        }
        let seen = self.model.inspect(kind, object).await.unwrap()?;
        identity_after_create(resource, &seen)
    }

    fn providers(&self) -> Providers {
        let model: Arc<dyn Provider> = Arc::clone(&self.model) as Arc<dyn Provider>;
        Providers::new(vec![model])
    }

    /// Cleans up in one of the ways that creel has.
    async fn clean_up(&mut self) {
        let window = if self.random.below(2) == 0 { 0 } else { 600 };
        let me = OwnerRecord::this_process("reconcile").unwrap();
        let reconciler = Reconciler::new(self.ledger.clone(), self.providers(), me)
            .with_intent_window(Duration::from_secs(window))
            .with_options(options());
        match self.random.below(4) {
            0 => drop(reconciler.finish().await.unwrap()),
            1 => drop(reconciler.inherit(&self.owner.owner).await.unwrap()),
            2 => self.sweep_ours().await,
            _ => drop(reconciler.round().await.unwrap()),
        }
        let _ = reconciler.round().await.unwrap();
        let _ = reconciler.resume().await.unwrap();
    }

    /// Releases what a sweep of our own things selects.
    async fn sweep_ours(&self) {
        let inventory = self.model.list(KINDS).await.unwrap();
        let records = self.ledger.records(&RecordFilter::open()).await.unwrap();
        let roll = Roll::new(self.ledger.id(), records);
        let ours = Selector { owned: true, ..Selector::default() };
        let plan = plan::build(PlanInput {
            worlds: Vec::new(),
            inventory: &inventory,
            roll: &roll,
            selectors: &[ours],
            findings: None,
            protect: &[],
            force: false,
            now: Timestamp::now(),
        });
        let reaper = Reaper::new(self.providers(), Some(self.ledger.clone()));
        let _ = reaper.run(&plan, &options(), &()).await;
    }

    fn foreign_released(&self) -> Vec<String> {
        self.model.state.lock().unwrap().foreign_released.clone()
    }
}

/// Opens a ledger where writes cost little.
async fn open_ledger() -> (tempfile::TempDir, Ledger) {
    let memory = std::path::Path::new("/dev/shm");
    let home = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let home = home.unwrap();
    let ledger = Ledger::open(home.path()).await.unwrap();
    (home, ledger)
}

/// Runs interleavings, and returns how many acts of others they had.
async fn run_all(seeds: std::ops::Range<u64>) -> u64 {
    let mut acts = 0;
    let mut shared = open_ledger().await;
    for seed in seeds {
        if seed % SHARED == 0 {
            shared = open_ledger().await;
        }
        let most = u32::try_from(seed % 12).unwrap();
        let mut story = Story::new(shared.1.clone(), seed, most);
        for _ in 0..1 + story.random.below(3) {
            story.take().await;
            story.model.others_act();
        }
        story.clean_up().await;
        let released = story.foreign_released();
        assert!(released.is_empty(), "seed {seed}: released {released:?}");
        acts += u64::from(most);
    }
    acts
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn nothing_of_somebody_else_is_released_in_any_interleaving() {
    runtime().block_on(run_all(1..3001));
}

#[test]
fn a_copy_of_what_was_released_stays() {
    runtime().block_on(async {
        for kind in [Kind::Container, Kind::Network, Kind::Volume] {
            let (_home, ledger) = open_ledger().await;
            let mut story = Story::new(ledger, 7, 0);
            story.model.state.lock().unwrap().keep_times();
            let resource = story.take_recorded(kind, "web").await;
            let record = story.ledger.record(resource).await.unwrap().unwrap();
            story.clean_up().await;
            assert_eq!(story.model.state.lock().unwrap().ours(), [""; 0]);
            let labels = record.labels.clone();
            story.model.state.lock().unwrap().make(kind, "web", labels, true).unwrap();
            for _ in 0..3 {
                story.clean_up().await;
            }
            assert_eq!(story.foreign_released(), [""; 0], "{kind}");
        }
    });
}

#[test]
fn without_others_everything_with_an_identity_goes() {
    runtime().block_on(async {
        for seed in 1..200 {
            let (_home, ledger) = open_ledger().await;
            let mut story = Story::new(ledger, seed, 0);
            story.take().await;
            story.clean_up().await;
            story.clean_up().await;
            let left = story.model.state.lock().unwrap().ours();
            // Without an answer nothing proves whose a reference is.
            let unproven = left.iter().all(|one| REFERENCES.contains(&one.as_str()));
            assert!(unproven, "seed {seed}: left {left:?}");
        }
    });
}

mod torture {
    mod identity {
        /// How many interleavings are tried.
        const INTERLEAVINGS: u64 = 100_000;
        /// Not one that the quick test tries.
        const FIRST_SEED: u64 = 1_000_000;

        #[test]
        fn nothing_of_somebody_else_is_released_in_many_interleavings() {
            let threads =
                std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
            let share = INTERLEAVINGS.div_ceil(threads);
            let acts: u64 = std::thread::scope(|scope| {
                let begin = |thread: u64| {
                    let first = thread * share;
                    let end = INTERLEAVINGS.min(first + share);
                    let seeds = FIRST_SEED + first..FIRST_SEED + end;
                    scope.spawn(|| super::super::runtime().block_on(super::super::run_all(seeds)))
                };
                let threads: Vec<_> = (0..threads).map(begin).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            println!(
                "report: {INTERLEAVINGS} interleavings of our acts, crashes and up to {acts} acts \
                 of others (create, remove, rename, retag, copy labels, prune): nothing of theirs \
                 was released"
            );
        }
    }
}
