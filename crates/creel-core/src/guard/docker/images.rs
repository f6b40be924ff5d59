//! Images: what a build, a pull, a load, an import, a commit or a tag adds.
//!
//! Images are never labelled: containers would inherit it. They are known by
//! what the engine's answers tell: ids that were not there before, and
//! references (see `references`). Names that others gave the same image stay.
//!
//! What the request names is on record before it is passed on; what only the
//! answer names is put on record before that part of the answer is passed on, so
//! that the command never knows of an image that is not on record. A crash in the
//! middle of a build leaves at most the images of its last steps, which are found
//! by the images they are built upon.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, oneshot};
use tracing::{debug, warn};

use crate::guard::claims::Claim;
use crate::labels;
use crate::provider::docker::{ImageNames, familiar, joined, step_name};
use crate::provider::{Kind, Provider, ProviderName};

use super::answer::{AnswerWatch, Asks, Named, SessionWatch, SessionWishes, Watch, Watched};
use super::archive::ArchiveWishes;
use super::gate::{DockerGate, Request};
use super::references::{Answer, Asked, asked_again};
use super::route::{self, Route};
use super::stream::Foresight;

/// A request that makes images.
pub(super) struct Work {
    /// What existed before, or is claimed since.
    pub(super) before: Before,
    /// The references it asks for that are not settled.
    pub(super) asked: Vec<Asked>,
    /// The references that are.
    pub(super) settled: HashSet<String>,
    /// The ids of images that the answer told, in whole or in part.
    pub(super) told: HashSet<String>,
    /// Of those, the ids that a build took from the cache.
    cached: HashSet<String>,
    /// The ids that were claimed since it began.
    claimed: HashSet<String>,
    /// The steps of a build that were begun last: what they make has no name yet.
    steps: Vec<BegunStep>,
    /// Whether it is a session of BuildKit, which tells images when their names are in place.
    is_session: bool,
    /// Whether it loads an archive.
    is_load: bool,
    /// Whether its end is on record.
    is_over: bool,
}

/// A step of a build that runs in a container.
struct BegunStep {
    claim: Claim,
    container: String,
}

/// How a request that makes images ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// With the whole answer, which says that it was carried out.
    Made,
    /// With the whole answer, which says that it failed.
    Failed,
    /// Without it, and the engine gives such work up when its client is gone.
    GivenUp,
    /// Without it, and the engine may go on.
    Unknown,
}

/// How long an engine may take to notice that nobody waits for a build any more.
const NOTICE: Duration = Duration::from_millis(500);

/// How long a builder may take to commit or give up a step after that.
const STEP_END: Duration = Duration::from_secs(10);

/// The images that existed before a request.
pub(super) struct Before {
    /// Each reference with the id of the image that it named.
    pub(super) references: HashMap<String, String>,
    pub(super) ids: HashSet<String>,
}

impl DockerGate {
    pub(super) async fn make_images(&self, route: Route, mut request: Request) -> io::Result<()> {
        let target = adapted(&route, request.head.target());
        request.head.set_target(&target);
        if self.policy.keep_images {
            return self.pass(request).await;
        }
        let _making = Making::of(&self.making);
        let work = match self.begin(&route, &target).await {
            Ok(work) => Mutex::new(work),
            Err(reason) => return request.refuse(500, &reason).await,
        };
        let without_end = match route {
            Route::Build | Route::BuildSession => Ending::GivenUp,
            _ => Ending::Unknown,
        };
        let passed = match route {
            Route::BuildSession => {
                let wishes = Wishes { gate: self, work: &work, asks: SessionWishes::default() };
                self.watch_images::<SessionWatch>(request, wishes, &work).await
            }
            Route::LoadImages => {
                let asks = ArchiveWishes::of(request.head.framing());
                let wishes = Wishes { gate: self, work: &work, asks };
                self.watch_images::<AnswerWatch>(request, wishes, &work).await
            }
            Route::Build => {
                let upload = Upload { gate: self, work: &work, read_at: Instant::now() };
                self.watch_images::<AnswerWatch>(request, upload, &work).await
            }
            _ => self.watch_images::<AnswerWatch>(request, (), &work).await,
        };
        let mut work = work.into_inner();
        if !work.is_over {
            self.end(&mut work, without_end).await;
        }
        passed
    }

    /// Passes a request on, and puts on record what the answer says before the client has it.
    async fn watch_images<W: Watch>(
        &self,
        request: Request,
        wishes: impl Foresight,
        work: &Mutex<Work>,
    ) -> io::Result<()> {
        let (tell, heard) = channel(1);
        let passing = self.pass_watched(request, wishes, Recorded { watch: W::default(), tell });
        let (passed, ()) = tokio::join!(passing, self.record(work, heard));
        passed
    }

    async fn begin(&self, route: &Route, target: &str) -> Result<Work, String> {
        self.check_tag_times().await;
        let names = self.engine.image_names().await.map_err(|error| error.to_string())?;
        let mut work = Work::upon(Before::of(&names));
        if let Route::Tag(source) = route
            && let Ok(Some(seen)) = self.engine.inspect(Kind::Image, source).await
        {
            // The answer to such a request has no words: this is what it will name.
            work.told.extend(seen.references().last().map(str::to_owned));
        }
        work.is_session = *route == Route::BuildSession;
        work.is_load = *route == Route::LoadImages;
        self.intend_references(&mut work, asked_for(route, target)).await?;
        Ok(work)
    }

    /// Records what an answer says, as it is said. What was begun is finished when the connection
    /// is cut.
    async fn record(&self, work: &Mutex<Work>, mut heard: Receiver<Heard>) {
        while let Some(Heard { named, ending, done }) = heard.recv().await {
            let mut work = work.lock().await;
            if let Some(named) = named {
                self.claim_named(&mut work, &named).await;
            }
            if let Some(ending) = ending.filter(|_| !work.is_over) {
                self.end(&mut work, ending).await;
            }
            // The connection may be cut meanwhile.
            let _ = done.send(());
        }
    }

    /// Reads what is there before a build once more. Where another request of the command makes
    /// images at the same time, they would seem foreign.
    async fn read_before_again(&self, work: &mut Work) {
        if self.making.load(Ordering::SeqCst) > 1 {
            return;
        }
        match self.engine.image_names().await {
            Ok(names) => {
                work.before = Before::of(&names);
                for asked in &mut work.asked {
                    asked.set_before(work.before.references.get(&asked.reference));
                }
            }
            Err(error) => debug!(%error, "images cannot be listed again"),
        }
    }

    /// Claims what is named.
    async fn claim_named(&self, work: &mut Work, named: &Named) {
        let over = self.begin_steps(work, named).await;
        if !self.claim_new(work, named).await {
            // They are still needed: by them the images are found in the end.
            work.steps.extend(over);
            return;
        }
        for step in over {
            let evidence = "its image is on record by its id".to_owned();
            self.claims.refute(&step.claim, evidence).await;
        }
    }

    /// Puts steps of a build on record that have begun; returns those that are over with it.
    async fn begin_steps(&self, work: &mut Work, named: &Named) -> Vec<BegunStep> {
        if named.ids.is_empty() && named.steps.is_empty() {
            return Vec::new();
        }
        let over = std::mem::take(&mut work.steps);
        for step in &named.steps {
            let name = step_name(&step.container, step.upon.as_deref());
            match self.claims.claim_existing(ProviderName::Docker, Kind::Image, name).await {
                Ok(claim) => {
                    let container = step.container.clone();
                    work.steps.push(BegunStep { claim, container });
                }
                Err(error) => warn!(%error, "a step of a build is not on record"),
            }
        }
        over
    }

    /// Claims what was named and is new; returns whether all of it is on record.
    async fn claim_new(&self, work: &mut Work, named: &Named) -> bool {
        work.told.extend(named.ids.iter().cloned());
        work.cached.extend(named.cached.iter().cloned());
        let are_recorded = named.ids.is_empty() || self.claim_unnamed(work).await;
        self.claim_told(work, &named.references).await;
        if work.is_session && !named.ids.is_empty() {
            self.claim_asked(work, Answer::TellsImages).await;
        }
        are_recorded
    }

    /// Claims images that the answer told, that are new and have no name: steps of a build, and
    /// images whose name another request of the command moved on. Returns whether all of them are
    /// on record.
    async fn claim_unnamed(&self, work: &mut Work) -> bool {
        let names = match asked_again(|| self.engine.image_names()).await {
            Ok(names) => names,
            Err(error) => {
                warn!(%error, "images cannot be listed");
                return false;
            }
        };
        // Who made an image from which a build goes on may want it, too.
        let is_cached = |image: &&ImageNames| work.cached.iter().any(|id| is_id_of(id, &image.id));
        let cached: Vec<String> =
            names.iter().filter(is_cached).map(|one| one.id.clone()).collect();
        work.before.ids.extend(cached);
        let steps = new_steps_below(work, &names);
        work.told.extend(steps);
        let mut are_recorded = true;
        for id in newly_named(work, &names) {
            match self.adopt_image(&id).await {
                Ok(()) => _ = work.claimed.insert(id),
                Err(error) => {
                    warn!(id, %error, "an image could not be claimed, and stays");
                    are_recorded = false;
                }
            }
        }
        are_recorded
    }

    /// Records what came of steps whose images nobody named; the engine is done with them.
    async fn settle_steps(&self, steps: Vec<BegunStep>) {
        for BegunStep { claim, container } in steps {
            self.await_end_of_step(&container).await;
            let found = asked_again(|| async { self.engine.find(&claim.marks()).await }).await;
            match found.as_deref() {
                Ok([image, ..]) => {
                    self.claims.confirm_as(&claim, &image.id, image.identity()).await;
                }
                Ok([]) => self.claims.refute(&claim, "the step made no image".to_owned()).await,
                Err(error) => warn!(%error, "what a step of a build made is left to the end"),
            }
        }
    }

    /// Waits until a builder has removed the container of a step: then it has committed it, or
    /// never will.
    async fn await_end_of_step(&self, container: &str) {
        let deadline = Instant::now() + STEP_END;
        while Instant::now() < deadline {
            match self.engine.inspect(Kind::Container, container).await {
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => tokio::time::sleep(NOTICE / 5).await,
            }
        }
        warn!(container, "a step of a build does not end");
    }

    /// Records what came of the references that were asked for.
    async fn end(&self, work: &mut Work, ending: Ending) {
        work.is_over = true;
        if ending == Ending::GivenUp {
            tokio::time::sleep(NOTICE).await;
        }
        self.settle_steps(std::mem::take(&mut work.steps)).await;
        match ending {
            Ending::Made => self.claim_asked(work, Answer::Made).await,
            Ending::GivenUp if self.is_any_unmade(work).await => {
                tokio::time::sleep(NOTICE).await;
            }
            Ending::Failed | Ending::GivenUp | Ending::Unknown => {}
        }
        if !work.told.is_empty() {
            self.claim_unnamed(work).await;
        }
        self.refute_asked(work, ending == Ending::Unknown).await;
    }
}

/// Counts a request that makes images, for as long as it lasts.
struct Making<'a>(&'a AtomicUsize);

impl<'a> Making<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A part of an answer that is held back until it is on record.
struct Heard {
    named: Option<Named>,
    /// How the answer ends, where this is its last part.
    ending: Option<Ending>,
    done: oneshot::Sender<()>,
}

/// Holds an answer back until what it says is on record.
struct Recorded<W> {
    watch: W,
    tell: Sender<Heard>,
}

impl<W: Watch> Foresight for Recorded<W> {
    async fn foresee(&mut self, bytes: &[u8]) {
        self.watch.feed(bytes);
        let named = self.watch.named();
        let ending = match self.watch.watched() {
            Watched::Made => Some(Ending::Made),
            Watched::Failed => Some(Ending::Failed),
            Watched::Cut => None,
        };
        if named.is_none() && ending.is_none() {
            return;
        }
        let (done, is_done) = oneshot::channel();
        // The other end lives until this one is dropped.
        if self.tell.send(Heard { named, ending, done }).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

/// How old the list of images may be when a part of the context of a build is passed on.
const FRESH: Duration = Duration::from_millis(500);

/// Keeps what is known to be there before a build up to date while its context is uploaded, which
/// may take long: the build begins only when the engine has all of it.
struct Upload<'a> {
    gate: &'a DockerGate,
    work: &'a Mutex<Work>,
    read_at: Instant,
}

impl Foresight for Upload<'_> {
    async fn foresee(&mut self, _: &[u8]) {
        if self.read_at.elapsed() < FRESH {
            return;
        }
        let mut work = self.work.lock().await;
        // An engine that answers already needs no more of it.
        if !work.is_over && work.told.is_empty() {
            self.gate.read_before_again(&mut work).await;
        }
        self.read_at = Instant::now();
    }
}

/// Puts what only the body of a request asks for on record, before the engine hears of it.
struct Wishes<'a, A> {
    gate: &'a DockerGate,
    work: &'a Mutex<Work>,
    asks: A,
}

impl<A: Asks> Foresight for Wishes<'_, A> {
    async fn foresee(&mut self, bytes: &[u8]) {
        let asked = self.asks.feed(bytes);
        if asked.is_empty() {
            return;
        }
        let asked = asked.iter().map(|name| familiar(name)).collect();
        let mut work = self.work.lock().await;
        // Such a request takes long: somebody may have made a reference since it began.
        match self.gate.engine.image_names().await {
            Ok(names) => work.before.references = Before::of(&names).references,
            Err(error) => return warn!(%error, "images cannot be listed"),
        }
        // If it fails, the answer names it once more.
        if let Err(error) = self.gate.intend_references(&mut work, asked).await {
            warn!(error, "an image is not on record before it is built");
        }
    }
}

/// Returns the ids that the answer told, that are there now without a name, were not there
/// before, and are not claimed yet.
fn newly_named(work: &Work, now: &[ImageNames]) -> Vec<String> {
    let is_named = |image: &&ImageNames| work.tells(&image.id);
    let is_new = |id: &String| !work.before.ids.contains(id) && !work.claimed.contains(id);
    let nameless = now.iter().filter(|image| image.references.is_empty()).filter(is_named);
    let mut ids: Vec<String> = nameless.map(|image| image.id.clone()).filter(is_new).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the new untagged parents of the images that the response named: the response to a
/// quiet build names only the last one.
fn new_steps_below(work: &Work, now: &[ImageNames]) -> Vec<String> {
    let images: HashMap<&str, &ImageNames> =
        now.iter().map(|image| (image.id.as_str(), image)).collect();
    let mut steps = Vec::new();
    for told in now.iter().filter(|image| !work.before.ids.contains(&image.id)) {
        let mut below = images.get(told.parent.as_str()).filter(|_| work.tells(&told.id));
        while let Some(step) = below {
            if work.before.ids.contains(&step.id) || !step.references.is_empty() {
                break;
            }
            steps.push(step.id.clone());
            below = images.get(step.parent.as_str());
        }
    }
    steps
}

/// Returns whether an id, in whole or in part, is that of an image.
fn is_id_of(told: &str, image: &str) -> bool {
    let (told, image) = (told.trim_start_matches("sha256:"), image.trim_start_matches("sha256:"));
    !told.is_empty() && image.starts_with(told)
}

impl Work {
    fn upon(before: Before) -> Self {
        let (asked, settled, told, cached, claimed, steps) = Default::default();
        let (is_session, is_load, is_over) = Default::default();
        Self { before, asked, settled, told, cached, claimed, steps, is_session, is_load, is_over }
    }

    /// Returns whether the answer told the images that its references name. That to a load tells
    /// only those that have no reference.
    pub(super) fn has_told_images(&self) -> bool {
        !self.is_load && !self.told.is_empty()
    }

    /// Returns whether the answer told the id of an image.
    pub(super) fn tells(&self, image: &str) -> bool {
        self.told.iter().any(|told| is_id_of(told, image))
    }
}

impl Before {
    fn of(names: &[ImageNames]) -> Self {
        let mut before = Self { references: HashMap::new(), ids: HashSet::new() };
        for image in names {
            before.ids.insert(image.id.clone());
            let named = image.references.iter().map(|name| (name.clone(), image.id.clone()));
            before.references.extend(named);
        }
        before
    }
}

/// Returns the references that a request asks for.
fn asked_for(route: &Route, target: &str) -> Vec<String> {
    let tag = route::parameter(target, "tag");
    let with_tag = |name: Option<String>| name.map(|name| joined(&name, tag.as_deref()));
    let one = match route {
        Route::Build => {
            let tags = route::parameters(target, "t");
            return tags.iter().filter(|tag| !tag.is_empty()).map(|tag| familiar(tag)).collect();
        }
        Route::CreateImage => with_tag(
            route::parameter(target, "fromImage").or_else(|| route::parameter(target, "repo")),
        ),
        Route::Commit | Route::Tag(_) => with_tag(route::parameter(target, "repo")),
        _ => None,
    };
    one.into_iter().collect()
}

/// Returns the target as it is to be passed on.
fn adapted(route: &Route, target: &str) -> String {
    match route {
        // A step that fails leaves its container behind otherwise, and nothing labels it.
        Route::Build => route::with_parameter(target, "forcerm", "1"),
        // The container's labels are copied into the image, and from there into the containers
        // of whoever uses it. They can only be emptied.
        Route::Commit => {
            let keys = [labels::RESOURCE, labels::LEDGER, labels::OWNER, labels::RUN];
            keys.iter().fold(target.to_owned(), |target, key| {
                route::with_one_more(&target, "changes", &format!("LABEL {key}=\"\""))
            })
        }
        _ => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_what_they_make() {
        let asked = |route: Route, target: &str| asked_for(&route, target);
        assert_eq!(asked(Route::Build, "/build?t=a&t=b:2&t="), ["a:latest", "b:2"]);
        assert_eq!(asked(Route::CreateImage, "/images/create?fromImage=a&tag=3"), ["a:3"]);
        assert_eq!(asked(Route::CreateImage, "/images/create?fromSrc=-&repo=x"), ["x:latest"]);
        assert_eq!(asked(Route::Commit, "/commit?container=c"), [""; 0]);
        assert_eq!(asked(Route::Tag("x".into()), "/images/x/tag?repo=y&tag=1"), ["y:1"]);
    }

    #[test]
    fn only_ids_that_are_new_named_and_nameless_are_claimed() {
        let image = |id: &str, references: &[&str]| ImageNames {
            id: format!("sha256:{id}"),
            parent: String::new(),
            references: references.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut work = Work::upon(Before::of(&[image("11", &["old:1"]), image("22", &[])]));
        let now = [
            image("11", &["old:1", "new:1"]),
            image("22", &[]),
            image("33", &[]),
            image("44", &[]),
            image("55", &["named:1"]),
        ];
        work.told.extend(["22", "sha256:33", "11", "55"].map(str::to_owned));
        assert_eq!(newly_named(&work, &now), ["sha256:33"]);
    }

    #[test]
    fn steps_below_the_image_of_a_quiet_build_are_claimed_as_far_as_they_are_new() {
        let image = |id: &str, parent: &str, references: &[&str]| ImageNames {
            id: id.to_owned(),
            parent: parent.to_owned(),
            references: references.iter().map(|&name| name.to_owned()).collect(),
        };
        let before = [image("base", "", &["base:1"]), image("theirs", "base", &[])];
        let mut work = Work::upon(Before::of(&before));
        let mut now = before.to_vec();
        now.extend([
            image("first", "theirs", &[]),
            image("second", "first", &[]),
            image("last", "second", &["app:1"]),
            image("foreign", "first", &[]),
        ]);
        work.told.insert("last".to_owned());
        assert_eq!(new_steps_below(&work, &now), ["second", "first"]);
    }
}
