//! A model of an engine that several people use, and of what they do to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::ResourceId;
use crate::labels::{self, Labels};
use crate::provider::docker::{Ours, Removal, foreign_name, removal};
use crate::provider::{
    CreateOrder, ErrorClass, Identity, Kind, Marks, Observed, Provider, ProviderError,
    ProviderName, ReleaseMode, Released, Result,
};

/// The kinds that the model has.
pub(super) const KINDS: &[Kind] = &[Kind::Container, Kind::Network, Kind::Volume, Kind::Image];

/// Names that people choose.
pub(super) const NAMES: [&str; 3] = ["pgdata", "web", "cache"];
/// References that people choose.
pub(super) const REFERENCES: [&str; 3] = ["app:1", "app:2", "base:1"];

/// A container, network or volume.
#[derive(Debug, Clone)]
struct Thing {
    kind: Kind,
    id: String,
    name: String,
    labels: Labels,
    created_at: i64,
    is_theirs: bool,
    /// Whether its labels came from its image.
    inherited: bool,
}

/// What we made for a resource.
#[derive(Debug, Clone)]
struct Made {
    kind: Kind,
    name: String,
    id: String,
    /// Whether its identity is on record.
    recorded: bool,
}

/// A reference of an image, and who put it there last.
#[derive(Debug, Clone)]
struct Tag {
    image: String,
    is_theirs: bool,
}

/// Everything that is there.
#[derive(Debug, Default)]
pub(super) struct State {
    things: Vec<Thing>,
    /// When each image was tagged last.
    images: BTreeMap<String, i64>,
    tags: BTreeMap<String, Tag>,
    /// What we made, by resource.
    made: BTreeMap<ResourceId, Made>,
    now: i64,
    /// Whether the time at which a volume was made never changes.
    stable: bool,
    /// What was released and not ours.
    pub(super) foreign_released: Vec<String>,
}

/// The model as a provider. Others act before every read, never between the last read and the
/// release: that one round trip is the window that remains.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) state: Mutex<State>,
    others: Mutex<Others>,
}

/// What others do, and how often.
#[derive(Debug)]
pub(super) struct Others {
    pub(super) random: Random,
    /// How many acts are left.
    pub(super) acts: u32,
}

/// A small generator; the tests must be repeatable.
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (limit.max(1) as u64)).expect("below a usize")
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

impl State {
    pub(super) fn new(stable: bool) -> Self {
        // Ids are never given twice, over all states of one test.
        static STARTS: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
        let now = STARTS.fetch_add(10_000, std::sync::atomic::Ordering::Relaxed) + 1;
        Self { now, stable, ..Self::default() }
    }

    /// Lets the time at which a volume was made never change.
    pub(super) fn keep_times(&mut self) {
        self.stable = true;
    }

    fn tick(&mut self) -> i64 {
        self.now += 1;
        self.now
    }

    /// Makes a thing, unless its name is taken; returns its id.
    pub(super) fn make(
        &mut self,
        kind: Kind,
        name: &str,
        labels: Labels,
        is_theirs: bool,
    ) -> Option<String> {
        // Engines allow two networks of one name.
        let is_taken = self.things.iter().any(|one| one.kind == kind && one.name == name);
        if is_taken && kind != Kind::Network {
            return None;
        }
        let created_at = self.tick();
        let id = match kind {
            Kind::Volume => name.to_owned(),
            _ => format!("{kind}-{created_at}"),
        };
        let (name, inherited) = (name.to_owned(), false);
        if let (false, Some(resource)) = (is_theirs, labels::claimed_resource(&labels)) {
            let made = Made { kind, name: name.clone(), id: id.clone(), recorded: false };
            self.made.insert(resource, made);
        }
        let thing = Thing { kind, id: id.clone(), name, labels, created_at, is_theirs, inherited };
        self.things.push(thing);
        Some(id)
    }

    /// Puts a reference on an image, which is made where it is missing.
    pub(super) fn tag(&mut self, reference: &str, image: &str, is_theirs: bool) {
        let at = self.tick();
        self.images.insert(image.to_owned(), at);
        self.tags.insert(reference.to_owned(), Tag { image: image.to_owned(), is_theirs });
    }

    /// Makes an image without a name.
    pub(super) fn build(&mut self, image: &str) {
        self.images.entry(image.to_owned()).or_insert(0);
    }

    fn names_of(&self, image: &str) -> Vec<String> {
        let of_image = self.tags.iter().filter(|(_, tag)| tag.image == image);
        of_image.map(|(reference, _)| reference.clone()).collect()
    }

    fn untag(&mut self, reference: &str, by_us: bool) {
        let Some(tag) = self.tags.remove(reference) else { return };
        if by_us && tag.is_theirs {
            self.foreign_released.push(format!("tag {reference}"));
        }
        if self.names_of(&tag.image).is_empty() {
            self.images.remove(&tag.image);
        }
    }

    fn remove_thing(&mut self, place: usize, by_us: bool) {
        let thing = self.things.remove(place);
        if by_us && thing.is_theirs {
            self.foreign_released.push(format!("{} {}", thing.kind, thing.name));
        }
    }

    /// Notes that the identity of a thing is on record.
    pub(super) fn note_recorded(&mut self, kind: Kind, id: &str) {
        for made in self.made.values_mut().filter(|made| made.kind == kind && made.id == id) {
            made.recorded = true;
        }
    }

    /// Returns whether a foreign object with this name and these labels is within the documented
    /// limits: while no identity is recorded, a copy with the same name cannot be distinguished
    /// from ours, and generated names cannot be guessed.
    fn is_distinguishable(&self, kind: Kind, name: &str, labels: &Labels) -> bool {
        let original = labels::claimed_resource(labels).and_then(|one| self.made.get(&one));
        let original = original.filter(|made| made.kind == kind && made.name == name);
        original.is_none_or(|made| {
            // Where times move, a volume with copied name and labels is like ours.
            let has_identity = made.recorded && (self.stable || kind != Kind::Volume);
            has_identity && NAMES.contains(&name)
        })
    }

    /// Makes a foreign object with copied labels.
    fn make_copy(&mut self, kind: Kind, name: &str, labels: Labels) -> Option<String> {
        if !self.is_distinguishable(kind, name, &labels) {
            return None;
        }
        self.make(kind, name, labels, true)
    }

    /// Lets somebody else do one thing.
    pub(super) fn act(&mut self, random: &mut Random) {
        let victim = random.below(self.things.len());
        let thing = self.things.get(victim).cloned();
        let name = NAMES[random.below(NAMES.len())];
        let reference = REFERENCES[random.below(REFERENCES.len())];
        let kind = KINDS[random.below(3)];
        let images: Vec<String> = self.images.keys().cloned().collect();
        match random.below(11) {
            0 => drop(self.make(kind, name, Labels::new(), true)),
            1 if thing.is_some() => self.remove_thing(victim, false),
            2 => self.rename(victim, name),
            3 => self.copy_labels(thing, name, random.below(2) == 0),
            4 => self.recreate(victim, false),
            5 => self.recreate(victim, true),
            6 => self.inherit(thing, name),
            7 => {
                let image = random.pick(&images).cloned();
                let image = image.unwrap_or_else(|| format!("sha256:{}", self.now));
                self.tag(reference, &image, true);
            }
            8 => self.tag(reference, &format!("sha256:{}", self.now), true),
            9 => self.untag(reference, false),
            10 => self.prune(),
            _ => {}
        }
    }

    fn rename(&mut self, victim: usize, name: &str) {
        let is_taken = |one: &Thing| one.kind == Kind::Container && one.name == name;
        let Some(one) = self.things.get(victim).filter(|one| one.kind == Kind::Container) else {
            return;
        };
        let is_allowed = !one.is_theirs || self.is_distinguishable(one.kind, name, &one.labels);
        if is_allowed && !self.things.iter().any(is_taken) {
            self.things[victim].name = name.to_owned();
        }
    }

    /// Gives somebody else's new object the labels of another one.
    fn copy_labels(&mut self, original: Option<Thing>, name: &str, same_kind: bool) {
        let Some(original) = original else { return };
        let kind = if same_kind { original.kind } else { Kind::Volume };
        // A network may even have the very name: engines allow it.
        let is_network = kind == Kind::Network && original.kind == kind;
        let name = if is_network { original.name.as_str() } else { name };
        self.make_copy(kind, name, original.labels);
    }

    /// Removes something, and makes another of its name.
    fn recreate(&mut self, victim: usize, with_labels: bool) {
        let Some(old) = self.things.get(victim).cloned() else { return };
        self.things.remove(victim);
        // Where times move, a volume with copied name and labels cannot be told from ours.
        let with_labels = with_labels && (self.stable || old.kind != Kind::Volume);
        let labels = if with_labels { old.labels } else { Labels::new() };
        self.make_copy(old.kind, &old.name, labels);
    }

    /// Runs somebody else's container from an image that carries labels of ours.
    fn inherit(&mut self, original: Option<Thing>, name: &str) {
        let Some(original) = original else { return };
        if self.make_copy(Kind::Container, name, original.labels).is_some() {
            self.things.last_mut().expect("it was just made").inherited = true;
        }
    }

    fn prune(&mut self) {
        let named: BTreeSet<String> = self.tags.values().map(|tag| tag.image.clone()).collect();
        self.images.retain(|image, _| named.contains(image));
        self.things.retain(|one| one.kind != Kind::Network || one.is_theirs);
    }

    fn observe(&self, one: &Thing) -> Observed {
        let identity = (one.kind == Kind::Volume).then(|| Identity::Volume {
            name: one.name.clone(),
            resource: labels::claimed_resource(&one.labels),
            engine_made: false,
            created_at: Timestamp::from_second(one.created_at).ok(),
            created_at_is_stable: self.stable,
        });
        Observed {
            name: one.name.clone(),
            labels: one.labels.clone(),
            state: "present".to_owned(),
            identity,
            ..Observed::known_by_id(ProviderName::Docker, one.kind, one.id.clone())
        }
    }

    fn observe_image(&self, asked: &str) -> Option<Observed> {
        let by_id = asked.starts_with("sha256:");
        let image = if by_id { asked.to_owned() } else { self.tags.get(asked)?.image.clone() };
        let tagged_at = *self.images.get(&image)?;
        let tags: BTreeSet<String> = self.names_of(&image).into_iter().collect();
        let tagged_at = Timestamp::from_second(tagged_at).ok().filter(|_| tagged_at > 0);
        let identity = if by_id {
            Identity::Image { id: image, tags, tagged_at }
        } else {
            let reference = asked.to_owned();
            Identity::Tag {
                reference,
                image,
                tagged_at,
                image_is_ours: false,
                tags,
                replaces: None,
            }
        };
        let seen = Observed::known_by_id(ProviderName::Docker, Kind::Image, asked);
        Some(Observed { identity: Some(identity), ..seen })
    }

    /// Looks by id, then by name, as engines do.
    pub(super) fn look(&self, kind: Kind, id: &str) -> Option<Observed> {
        if kind == Kind::Image {
            return self.observe_image(id);
        }
        let of_kind = || self.things.iter().filter(|one| one.kind == kind);
        let found =
            of_kind().find(|one| one.id == id).or_else(|| of_kind().find(|one| one.name == id));
        found.map(|one| self.observe(one))
    }

    /// Returns what is there and was made by us.
    pub(super) fn ours(&self) -> Vec<String> {
        let things = self.things.iter().filter(|one| !one.is_theirs).map(|one| one.id.clone());
        let tags = self.tags.iter().filter(|(_, tag)| !tag.is_theirs).map(|(name, _)| name.clone());
        things.chain(tags).collect()
    }

    fn release_image(&mut self, id: &str, mode: &ReleaseMode) -> Result<Released> {
        if self.observe_image(id).is_none() {
            return Ok(Released::AlreadyGone);
        }
        let image = self.tags.get(id).map_or_else(|| id.to_owned(), |tag| tag.image.clone());
        let names = self.names_of(&image);
        match &mode.expected {
            Some(Identity::Tag { image: ours, image_is_ours, .. }) if id != image => {
                let ours = Ours { image: ours, image_is_ours: *image_is_ours, replaces: None };
                match removal(id, &image, &names, ours) {
                    Removal::Kept(check) => return Ok(Released::Kept(check)),
                    Removal::ById | Removal::ReferenceOnly => self.untag(id, true),
                }
            }
            Some(Identity::Image { tags, .. }) if foreign_name(&names, Some(tags)).is_some() => {
                return Err(refused("it has several names"));
            }
            _ => {
                names.iter().for_each(|name| self.untag(name, true));
                self.images.remove(&image);
            }
        }
        Ok(Released::Done)
    }
}

impl Model {
    pub(super) fn new(state: State, others: Others) -> Self {
        Self { state: Mutex::new(state), others: Mutex::new(others) }
    }

    /// Lets others act, where they have something left to do.
    pub(super) fn others_act(&self) {
        let mut others = self.others.lock().expect("no test panics with it");
        let mut state = self.state.lock().expect("no test panics with it");
        while others.acts > 0 && others.random.below(3) != 0 {
            others.acts -= 1;
            state.act(&mut others.random);
        }
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        self.others_act();
        read(&self.state.lock().expect("no test panics with it"))
    }
}

fn refused(message: &str) -> ProviderError {
    ProviderError {
        provider: ProviderName::Docker,
        operation: "release".to_owned(),
        message: message.to_owned(),
        class: ErrorClass::InUse,
        retry_after: None,
    }
}

#[async_trait]
impl Provider for Model {
    fn name(&self) -> ProviderName {
        ProviderName::Docker
    }

    fn address(&self) -> String {
        "model".to_owned()
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    async fn identity(&self) -> Result<String> {
        Ok("model".to_owned())
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        Ok(self.read(|state| {
            let things = state.things.iter().filter(|one| kinds.contains(&one.kind));
            let mut seen: Vec<Observed> = things.map(|one| state.observe(one)).collect();
            if kinds.contains(&Kind::Image) {
                seen.extend(state.images.keys().filter_map(|id| state.observe_image(id)));
            }
            seen
        }))
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        Ok(self.read(|state| state.look(kind, id)))
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        Ok(self.read(|state| {
            let own = state.things.iter().filter(|one| !one.inherited);
            own.map(|one| state.observe(one)).filter(|seen| marks.fit(seen)).collect()
        }))
    }

    async fn create(&self, _: &CreateOrder) -> Result<String> {
        Err(refused("the test makes things itself"))
    }

    async fn stop(&self, _: Kind, _: &str, _: std::time::Duration) -> Result<()> {
        Ok(())
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let mut state = self.state.lock().expect("no test panics with it");
        if kind == Kind::Image {
            return state.release_image(id, &mode);
        }
        let found = state.things.iter().position(|one| one.kind == kind && one.id == id);
        let Some(place) = found else { return Ok(Released::AlreadyGone) };
        state.remove_thing(place, true);
        Ok(Released::Done)
    }
}
