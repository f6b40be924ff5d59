//! A model of an engine with several users, and of their actions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use creel_docker::decisions::{Family, Ours, Removal, follows, foreign_name, removal};
use creel_ledger::Ledger;
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{
    CreateRequest, Deadline, ErrorClass, Identity, IdentityCheck, Kind, Marks, Observed, Permit,
    Provider, ProviderError, ProviderName, ReleaseMode, Released, Result,
};
use jiff::Timestamp;
use tokio::sync::Notify;

use super::witness::AuditWitness;

/// The kinds that the model supports.
pub(super) const KINDS: &[Kind] = &[Kind::Container, Kind::Network, Kind::Volume, Kind::Image];

/// Names that users choose.
pub(super) const NAMES: [&str; 3] = ["pgdata", "web", "cache"];
/// Longer than the next step of a build can take, in seconds.
const LONGER_THAN_A_STEP: i64 = 31;
/// References that users choose.
pub(super) const REFERENCES: [&str; 3] = ["app:1", "app:2", "base:1"];

/// A container, network or volume.
#[derive(Debug, Clone)]
struct EngineObject {
    kind: Kind,
    id: String,
    name: String,
    labels: Labels,
    created_at: i64,
    is_theirs: bool,
    /// Whether its labels came from its image.
    inherited: bool,
}

/// The object that we created for a resource.
#[derive(Debug, Clone)]
struct CreatedObject {
    kind: Kind,
    name: String,
    id: String,
    /// Whether its identity is on record.
    recorded: bool,
}

/// Who removes an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remover {
    /// This program keeps the unused images below it.
    Us,
    /// The engine removes them too.
    OtherUser,
}

/// A reference of an image, and who set it last.
#[derive(Debug, Clone)]
struct Tag {
    image: String,
    is_theirs: bool,
}

/// An image, with a name or without.
#[derive(Debug, Clone, Default)]
struct ModelImage {
    created_at: i64,
    /// When it was last tagged.
    tagged_at: Option<i64>,
    /// The image that it is built upon.
    parent: Option<String>,
    labels: Labels,
    is_theirs: bool,
}

/// The state of the engine.
#[derive(Debug, Default)]
pub(super) struct ModelState {
    objects: Vec<EngineObject>,
    images: BTreeMap<String, ModelImage>,
    tags: BTreeMap<String, Tag>,
    /// The objects that we created, by resource.
    created: BTreeMap<ResourceId, CreatedObject>,
    now: i64,
    /// Whether the creation time of a volume never changes.
    stable: bool,
    /// Foreign objects that were released.
    pub(super) foreign_released: Vec<String>,
    /// How many references were put back on the image that they named before.
    pub(super) restored_count: u64,
}

/// The model as a provider.
///
/// Other users act before every read, but never between the last read and the release. That one
/// round trip is the window that remains.
#[derive(Debug)]
pub(super) struct EngineModel {
    pub(super) state: Mutex<ModelState>,
    /// What has to explain every release request.
    pub(super) witness: AuditWitness,
    other_users: Mutex<OtherUsers>,
    /// How many request steps the caller performs before it dies, if it dies.
    steps_left: Mutex<Option<usize>>,
    /// Notified when the caller has died.
    pub(super) death: Notify,
}

/// The actions of other users.
#[derive(Debug)]
pub(super) struct OtherUsers {
    pub(super) random: Random,
    /// How many actions are left.
    pub(super) acts: u32,
    /// Whether release requests fail now and then, with or without an effect.
    pub(super) has_faults: bool,
}

/// A small random generator, because the tests must be repeatable.
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

impl ModelState {
    pub(super) fn new(stable: bool) -> Self {
        // Ids are unique across all states of one test.
        static STARTS: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
        let now = STARTS.fetch_add(10_000, std::sync::atomic::Ordering::Relaxed) + 1;
        Self { now, stable, ..Self::default() }
    }

    /// Makes the creation times of volumes stable.
    pub(super) fn make_times_stable(&mut self) {
        self.stable = true;
    }

    fn tick(&mut self) -> i64 {
        self.now += 1;
        self.now
    }

    /// Creates a thing, unless its name is taken. Returns its id.
    pub(super) fn make(
        &mut self,
        kind: Kind,
        name: &str,
        labels: Labels,
        is_theirs: bool,
    ) -> Option<String> {
        // Engines allow two networks with one name.
        let is_used = self.objects.iter().any(|one| one.kind == kind && one.name == name);
        if is_used && kind != Kind::Network {
            return None;
        }
        let created_at = self.tick();
        let id = match kind {
            Kind::Volume => name.to_owned(),
            _ => format!("{kind}-{created_at}"),
        };
        let (name, inherited) = (name.to_owned(), false);
        if let (false, Some(resource)) = (is_theirs, labels::claimed_resource(&labels)) {
            let created =
                CreatedObject { kind, name: name.clone(), id: id.clone(), recorded: false };
            self.created.insert(resource, created);
        }
        let object =
            EngineObject { kind, id: id.clone(), name, labels, created_at, is_theirs, inherited };
        self.objects.push(object);
        Some(id)
    }

    /// Sets a reference on an image. An image that had the reference before loses it.
    pub(super) fn tag(&mut self, reference: &str, image: &str, is_theirs: bool) {
        let at = self.tick();
        if let Some(image) = self.images.get_mut(image) {
            image.tagged_at = Some(at);
        }
        self.tags.insert(reference.to_owned(), Tag { image: image.to_owned(), is_theirs });
    }

    /// Returns the image that a reference of another user names. Without one, the user makes it.
    pub(super) fn reference_of_another_user(&mut self, reference: &str) -> String {
        match self.tags.get(reference) {
            Some(tag) if tag.is_theirs => tag.image.clone(),
            _ => {
                let image = self.build(None, true);
                self.tag(reference, &image, true);
                image
            }
        }
    }

    /// Returns the image that a reference names.
    pub(super) fn image_of(&self, reference: &str) -> Option<&str> {
        self.tags.get(reference).map(|tag| tag.image.as_str())
    }

    /// Puts a reference of ours back on the image of another user that it named before.
    fn restore(&mut self, reference: &str, before: &str) {
        if self.tags.get(reference).is_some_and(|tag| tag.is_theirs) {
            self.foreign_released.push(format!("tag {reference}, moved to {before}"));
        }
        self.tag(reference, before, true);
        self.restored_count += 1;
    }

    /// Creates an image without a name. Returns its id.
    pub(super) fn build(&mut self, parent: Option<String>, is_theirs: bool) -> String {
        let created_at = self.tick();
        let id = format!("sha256:{created_at}");
        let image = ModelImage { created_at, parent, is_theirs, ..ModelImage::default() };
        self.images.insert(id.clone(), image);
        id
    }

    /// Returns the ids of all images.
    pub(super) fn image_ids(&self) -> Vec<String> {
        self.images.keys().cloned().collect()
    }

    /// Removes an image for another user, unless it has a name or an image is built upon it.
    pub(super) fn remove_for_another_user(&mut self, image: &str) -> bool {
        let is_unused = self.is_unused(image);
        if is_unused {
            self.remove_image(image, Remover::OtherUser);
        }
        is_unused
    }

    /// Returns whether we created an image.
    pub(super) fn is_ours(&self, image: &str) -> bool {
        self.images.get(image).is_some_and(|image| !image.is_theirs)
    }

    fn names_of(&self, image: &str) -> Vec<String> {
        let of_image = self.tags.iter().filter(|(_, tag)| tag.image == image);
        of_image.map(|(reference, _)| reference.clone()).collect()
    }

    /// Returns whether an image has no name, and no image is built upon it.
    fn is_unused(&self, image: &str) -> bool {
        self.names_of(image).is_empty() && !self.has_children(image)
    }

    fn has_children(&self, image: &str) -> bool {
        self.images.values().any(|one| one.parent.as_deref() == Some(image))
    }

    /// Removes a reference, and with the last one its image, unless another image is built upon it.
    fn untag(&mut self, reference: &str, by: Remover) {
        let Some(tag) = self.tags.remove(reference) else { return };
        if by == Remover::Us && tag.is_theirs {
            self.foreign_released.push(format!("tag {reference}"));
        }
        if self.is_unused(&tag.image) {
            self.remove_image(&tag.image, by);
        }
    }

    /// Removes an image and, for other users, the unused images below it, as engines do.
    fn remove_image(&mut self, id: &str, by: Remover) {
        let Some(image) = self.images.remove(id) else { return };
        if by == Remover::Us && image.is_theirs {
            self.foreign_released.push(format!("image {id}"));
        }
        let is_pruned = |parent: &String| by == Remover::OtherUser && self.is_unused(parent);
        if let Some(parent) = image.parent.filter(is_pruned) {
            self.remove_image(&parent, by);
        }
    }

    fn remove_object(&mut self, place: usize, by_us: bool) {
        let object = self.objects.remove(place);
        if by_us && object.is_theirs {
            self.foreign_released.push(format!("{} {}", object.kind, object.name));
        }
    }

    /// Marks the identity of a thing as recorded.
    pub(super) fn note_recorded(&mut self, kind: Kind, id: &str) {
        for created in
            self.created.values_mut().filter(|created| created.kind == kind && created.id == id)
        {
            created.recorded = true;
        }
    }

    /// Returns whether a foreign object with this name and these labels is within the documented
    /// limits.
    ///
    /// While no identity is recorded, a copy with the same name cannot be distinguished from ours.
    fn is_distinguishable(&self, kind: Kind, name: &str, labels: &Labels) -> bool {
        let original = labels::claimed_resource(labels).and_then(|one| self.created.get(&one));
        let original = original.filter(|created| created.kind == kind && created.name == name);
        original.is_none_or(|created| {
            // If creation times change, a volume with copied name and labels equals ours.
            created.recorded && (self.stable || kind != Kind::Volume)
        })
    }

    /// Creates a foreign object with copied labels.
    fn make_copy(&mut self, kind: Kind, name: &str, labels: Labels) -> Option<String> {
        if !self.is_distinguishable(kind, name, &labels) {
            return None;
        }
        self.make(kind, name, labels, true)
    }

    /// Performs one action of another user.
    pub(super) fn act(&mut self, random: &mut Random) {
        let victim = random.below(self.objects.len());
        let object = self.objects.get(victim).cloned();
        let name = NAMES[random.below(NAMES.len())];
        let reference = REFERENCES[random.below(REFERENCES.len())];
        let kind = KINDS[random.below(3)];
        let image = random.pick(&self.image_ids()).cloned();
        match random.below(13) {
            0 => drop(self.make(kind, name, Labels::new(), true)),
            1 if object.is_some() => self.remove_object(victim, false),
            2 => self.rename(victim, name),
            3 => self.copy_labels(object, name, random.below(2) == 0),
            4 => self.recreate(victim, false),
            5 => self.recreate(victim, true),
            6 => self.inherit(object, name),
            7 => {
                let image = image.unwrap_or_else(|| self.build(None, true));
                self.tag(reference, &image, true);
            }
            8 => {
                let image = self.build(None, true);
                self.tag(reference, &image, true);
            }
            9 => self.untag(reference, Remover::OtherUser),
            10 => self.prune(),
            11 => drop(self.build_upon(image)),
            12 => self.commit(object, image, random.below(2) == 0, reference),
            _ => {}
        }
    }

    fn rename(&mut self, victim: usize, name: &str) {
        let is_used = |one: &EngineObject| one.kind == Kind::Container && one.name == name;
        let Some(one) = self.objects.get(victim).filter(|one| one.kind == Kind::Container) else {
            return;
        };
        let is_allowed = !one.is_theirs || self.is_distinguishable(one.kind, name, &one.labels);
        if is_allowed && !self.objects.iter().any(is_used) {
            self.objects[victim].name = name.to_owned();
        }
    }

    /// Creates a foreign object with the labels of another one.
    fn copy_labels(&mut self, original: Option<EngineObject>, name: &str, same_kind: bool) {
        let Some(original) = original else { return };
        let kind = if same_kind { original.kind } else { Kind::Volume };
        // A network may even have the same name: engines allow it.
        let is_network = kind == Kind::Network && original.kind == kind;
        let name = if is_network { original.name.as_str() } else { name };
        self.make_copy(kind, name, original.labels);
    }

    /// Removes a thing, and creates another one with its name.
    fn recreate(&mut self, victim: usize, with_labels: bool) {
        let Some(old) = self.objects.get(victim).cloned() else { return };
        self.objects.remove(victim);
        // If creation times change, a volume with copied name and labels cannot be distinguished
        // from ours.
        let with_labels = with_labels && (self.stable || old.kind != Kind::Volume);
        let labels = if with_labels { old.labels } else { Labels::new() };
        self.make_copy(old.kind, &old.name, labels);
    }

    /// Gives the name of an object to a foreign one, whether the object exists or not.
    fn take_name(&mut self, kind: Kind, id: &str) {
        let is_it = |one: &EngineObject| one.kind == kind && (one.id == id || one.name == id);
        let place = self.objects.iter().position(is_it);
        match (kind, place) {
            (Kind::Image, _) if self.tags.contains_key(id) => {
                let image = self.build(None, true);
                self.tag(id, &image, true);
            }
            (_, Some(place)) => self.recreate(place, false),
            (Kind::Volume, None) => drop(self.make(kind, id, Labels::new(), true)),
            (_, None) => {}
        }
    }

    /// Runs a foreign container from an image that carries our labels.
    fn inherit(&mut self, original: Option<EngineObject>, name: &str) {
        let Some(original) = original else { return };
        if self.make_copy(Kind::Container, name, original.labels).is_some() {
            self.objects.last_mut().expect("it was just made").inherited = true;
        }
    }

    /// Builds a foreign image without a name, upon another one or from nothing.
    fn build_upon(&mut self, parent: Option<String>) -> String {
        // Before this time it would count as a step of our own build, which is documented.
        self.now += LONGER_THAN_A_STEP;
        self.build(parent, true)
    }

    /// Creates a foreign image that carries the labels of another object.
    fn commit(
        &mut self,
        original: Option<EngineObject>,
        parent: Option<String>,
        is_named: bool,
        reference: &str,
    ) {
        let Some(original) = original else { return };
        let image = self.build_upon(parent);
        if let Some(image) = self.images.get_mut(&image) {
            image.labels = original.labels;
        }
        if is_named {
            self.tag(reference, &image, true);
        }
    }

    fn prune(&mut self) {
        let unused = |state: &Self| state.image_ids().into_iter().find(|id| state.is_unused(id));
        while let Some(image) = unused(self) {
            self.remove_image(&image, Remover::OtherUser);
        }
        self.objects.retain(|one| one.kind != Kind::Network || one.is_theirs);
    }

    fn observe(&self, one: &EngineObject) -> Observed {
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
            ..Observed::known_by_id(creel_docker::NAME, one.kind, one.id.clone())
        }
    }

    fn observe_image(&self, name: &str) -> Option<Observed> {
        let by_id = name.starts_with("sha256:");
        let image = if by_id { name.to_owned() } else { self.tags.get(name)?.image.clone() };
        let found = self.images.get(&image)?;
        let tags: BTreeSet<String> = self.names_of(&image).into_iter().collect();
        let tagged_at = found.tagged_at.and_then(|at| Timestamp::from_second(at).ok());
        let labels = found.labels.clone();
        let aliases = if by_id { Vec::new() } else { vec![image.clone()] };
        let names = tags.iter().cloned().collect();
        let identity = if by_id {
            Identity::Image { id: image, tags, tagged_at }
        } else {
            let reference = name.to_owned();
            Identity::Tag {
                reference,
                image,
                tagged_at,
                image_is_ours: false,
                tags,
                replaces: None,
            }
        };
        let seen = Observed::known_by_id(creel_docker::NAME, Kind::Image, name);
        Some(Observed { identity: Some(identity), labels, aliases, tags: names, ..seen })
    }

    /// Finds steps of builds upon these images, as a provider does.
    fn steps_upon(&self, images: &[String]) -> Vec<Observed> {
        let mut family = Family::default();
        for (id, image) in &self.images {
            family.add(id.clone(), image.parent.clone(), !self.names_of(id).is_empty());
        }
        let created_at = |id: &String| Timestamp::from_second(self.images.get(id)?.created_at).ok();
        let mut steps = Vec::new();
        for image in images {
            let mut parent = image.clone();
            while let Some(child) = family.only_step_upon(&parent) {
                if images.contains(&child) || !follows(created_at(&parent), created_at(&child)) {
                    break;
                }
                steps.extend(self.observe_image(&child));
                parent = child;
            }
        }
        steps
    }

    /// Finds an object by id, then by name, as engines do.
    pub(super) fn inspect(&self, kind: Kind, id: &str) -> Option<Observed> {
        if kind == Kind::Image {
            return self.observe_image(id);
        }
        let of_kind = || self.objects.iter().filter(|one| one.kind == kind);
        let found =
            of_kind().find(|one| one.id == id).or_else(|| of_kind().find(|one| one.name == id));
        found.map(|one| self.observe(one))
    }

    /// Returns our objects that still exist.
    pub(super) fn ours(&self) -> Vec<String> {
        let objects = self.objects.iter().filter(|one| !one.is_theirs).map(|one| one.id.clone());
        let tags = self.tags.iter().filter(|(_, tag)| !tag.is_theirs).map(|(name, _)| name.clone());
        objects.chain(tags).collect()
    }

    fn release_image(&mut self, id: &str, mode: &ReleaseMode) -> Result<Released> {
        if self.observe_image(id).is_none() {
            return Ok(Released::AlreadyGone);
        }
        let image = self.tags.get(id).map_or_else(|| id.to_owned(), |tag| tag.image.clone());
        let names = self.names_of(&image);
        match &mode.expected {
            Some(Identity::Tag { image: ours, image_is_ours, replaces, .. }) if id != image => {
                let replaces = replaces.as_deref();
                let ours = Ours { image: ours, image_is_ours: *image_is_ours, replaces };
                let decided = removal(id, &image, &names, ours);
                let is_replaced = matches!(decided, Removal::Kept(IdentityCheck::Replaced { .. }));
                let before = replaces.filter(|before| self.images.contains_key(*before));
                if let (false, Some(before)) = (is_replaced, before) {
                    self.restore(id, before);
                    return Ok(Released::Done);
                }
                match decided {
                    Removal::Kept(check) => return Ok(Released::Kept(check)),
                    Removal::ById if self.has_children(&image) => return Err(refused(BUILT_UPON)),
                    Removal::ById | Removal::ReferenceOnly => self.untag(id, Remover::Us),
                }
            }
            Some(Identity::Image { tags, .. }) if foreign_name(&names, Some(tags)).is_some() => {
                return Err(refused("it has several names"));
            }
            _ if self.has_children(&image) => return Err(refused(BUILT_UPON)),
            _ => {
                names.iter().for_each(|name| self.untag(name, Remover::Us));
                self.remove_image(&image, Remover::Us);
            }
        }
        Ok(Released::Done)
    }
}

impl EngineModel {
    pub(super) fn new(state: ModelState, other_users: OtherUsers, ledger: Ledger) -> Self {
        let (state, other_users) = (Mutex::new(state), Mutex::new(other_users));
        let witness = AuditWitness::new(ledger);
        Self { state, witness, other_users, steps_left: Mutex::default(), death: Notify::new() }
    }

    /// Sets after how many request steps the caller dies, if it dies.
    pub(super) fn die_after(&self, steps: Option<usize>) {
        *self.steps_left.lock().expect("no test panics with it") = steps;
    }

    /// Runs before and after the effect of a request. A caller that has died never gets past it.
    async fn step(&self) {
        let is_dead = {
            let mut steps_left = self.steps_left.lock().expect("no test panics with it");
            let is_dead = *steps_left == Some(0);
            *steps_left = steps_left.map(|steps| steps.saturating_sub(1));
            is_dead
        };
        if is_dead {
            self.death.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// Chooses the fault of a release request.
    fn fault(&self) -> ReleaseFault {
        let mut other_users = self.other_users.lock().expect("no test panics with it");
        match other_users.has_faults.then(|| other_users.random.below(10)) {
            Some(0) => ReleaseFault::RequestLost,
            Some(1) => ReleaseFault::ResponseLost,
            _ => ReleaseFault::None,
        }
    }

    /// Performs some of the remaining actions of other users.
    pub(super) fn other_users_act(&self) {
        let mut other_users = self.other_users.lock().expect("no test panics with it");
        let mut state = self.state.lock().expect("no test panics with it");
        while other_users.acts > 0 && other_users.random.below(3) != 0 {
            other_users.acts -= 1;
            state.act(&mut other_users.random);
        }
    }

    async fn read<T>(&self, read: impl FnOnce(&ModelState) -> T) -> T {
        self.step().await;
        self.other_users_act();
        read(&self.state.lock().expect("no test panics with it"))
    }

    /// Lets other users take the name of an object in half of the cases.
    fn other_users_take(&self, kind: Kind, id: &str) {
        let mut other_users = self.other_users.lock().expect("no test panics with it");
        if other_users.random.below(2) == 0 {
            self.state.lock().expect("no test panics with it").take_name(kind, id);
        }
    }

    fn release_now(&self, kind: Kind, id: &str, mode: &ReleaseMode) -> Result<Released> {
        let mut state = self.state.lock().expect("no test panics with it");
        if kind == Kind::Image {
            return state.release_image(id, mode);
        }
        // Engines accept a name in place of an id.
        let found_by = |is_it: &dyn Fn(&EngineObject) -> bool| {
            state.objects.iter().position(|one| one.kind == kind && is_it(one))
        };
        let found = found_by(&|one| one.id == id).or_else(|| found_by(&|one| one.name == id));
        let Some(place) = found else { return Ok(Released::AlreadyGone) };
        state.remove_object(place, true);
        Ok(Released::Done)
    }
}

/// The fault of a release request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReleaseFault {
    None,
    /// The request has no effect.
    RequestLost,
    /// The request has its effect, but the response is lost.
    ResponseLost,
}

/// The error of an image that cannot be removed.
const BUILT_UPON: &str = "an image is built upon it";

fn refused(message: &str) -> ProviderError {
    failed(ErrorClass::InUse, message)
}

/// Returns an error of the model.
pub(super) fn failed(class: ErrorClass, message: &str) -> ProviderError {
    ProviderError {
        provider: creel_docker::NAME,
        operation: "release".to_owned(),
        message: message.to_owned(),
        class,
        retry_after: None,
    }
}

#[async_trait]
impl Provider for EngineModel {
    fn name(&self) -> ProviderName {
        creel_docker::NAME
    }

    fn address(&self) -> String {
        "model".to_owned()
    }

    fn other_account_hint(&self) -> &'static str {
        "use the other model"
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn within(self: Arc<Self>, _permit: Permit, _deadline: Deadline) -> Arc<dyn Provider> {
        self
    }

    async fn identity(&self) -> Result<String> {
        Ok("model".to_owned())
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        Ok(self
            .read(|state| {
                let objects = state.objects.iter().filter(|one| kinds.contains(&one.kind));
                let mut seen: Vec<Observed> = objects.map(|one| state.observe(one)).collect();
                if kinds.contains(&Kind::Image) {
                    seen.extend(state.images.keys().filter_map(|id| state.observe_image(id)));
                }
                seen
            })
            .await)
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        Ok(self.read(|state| state.inspect(kind, id)).await)
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        Ok(self
            .read(|state| {
                let own = state.objects.iter().filter(|one| !one.inherited);
                own.map(|one| state.observe(one)).filter(|seen| marks.fit(seen)).collect()
            })
            .await)
    }

    async fn unrecorded_steps(&self, images: &[String], _: &[String]) -> Result<Vec<Observed>> {
        Ok(self.read(|state| state.steps_upon(images)).await)
    }

    async fn create(&self, _: &CreateRequest) -> Result<String> {
        Err(refused("the test makes things itself"))
    }

    async fn stop(&self, _: Kind, _: &str, _: std::time::Duration) -> Result<()> {
        Ok(())
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        self.step().await;
        let claimed = {
            let state = self.state.lock().expect("no test panics with it");
            let object = state.objects.iter().find(|one| one.kind == kind && one.id == id);
            object.and_then(|one| labels::claimed_resource(&one.labels))
        };
        self.witness.see_request(kind, id, claimed).await;
        let fault = self.fault();
        let lost = || {
            // Other users act while the caller waits before it tries again.
            self.other_users_act();
            self.other_users_take(kind, id);
            failed(ErrorClass::Transient, "no answer")
        };
        if fault == ReleaseFault::RequestLost {
            self.witness.see_response(kind, id);
            return Err(lost());
        }
        let released = self.release_now(kind, id, &mode);
        self.step().await;
        self.witness.see_response(kind, id);
        if fault == ReleaseFault::ResponseLost { Err(lost()) } else { released }
    }
}
