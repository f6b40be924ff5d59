//! Tracks the images that builds, pulls, loads, imports, commits and tags add.
//!
//! Images are never labelled, because containers would inherit the label. They are identified from
//! the engine's responses: by ids that did not exist before, and by references (see `references`).
//! Names that other clients gave the same image stay.
//!
//! What the request names is recorded before the request is forwarded. What only the response names
//! is recorded before that part of the response is forwarded, so the command never knows of an
//! image that is not on record. A crash in the middle of a build leaves at most the images of its
//! last steps. They are found through the images they are built upon.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use creel_docker::{ImageNames, familiar, joined, step_name};
use creel_model::labels;
use creel_model::provider::{Kind, Provider};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, oneshot};
use tracing::{debug, warn};

use crate::claims::Claim;

use super::archive::ArchiveRequests;
use super::gate::{ClientRequest, DockerGate};
use super::references::{Certainty, RequestedReference, with_retry};
use super::response::{ImageWatch, ReportedImages, RequestReader, ResponseEnding, ResponseWatch};
use super::route::{self, DockerRoute};
use super::session::session;
use super::stream::ChunkHook;

/// A request that makes images.
pub(super) struct ImageWork {
    /// The images that existed before. Images that a build took from the cache are added.
    pub(super) before: Before,
    /// The requested references whose outcome is not known yet.
    pub(super) requested: Vec<RequestedReference>,
    /// The references whose outcome is recorded.
    pub(super) recorded: HashSet<String>,
    /// The full or abbreviated ids of the images that the response named.
    pub(super) reported_ids: HashSet<String>,
    /// The ids among these that a build took from the cache.
    cached: HashSet<String>,
    /// The ids claimed since the request began.
    claimed: HashSet<String>,
    /// The most recently started steps of a build. Their images have no name yet.
    steps: Vec<BegunStep>,
    /// Where the images come from.
    source: ImageSource,
    /// Whether the end of the request is recorded.
    is_over: bool,
}

/// Where the images of a request come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageSource {
    /// A build. The output of its steps is in the response, among the builder's own lines.
    Build,
    /// A BuildKit session, which names images once their references are in place.
    Session,
    /// An archive.
    Load,
    /// A pull, an import, a commit or a tag.
    Other,
}

/// A step of a build that runs in a container.
struct BegunStep {
    claim: Claim,
    container: String,
}

/// How a request that makes images ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestEnding {
    /// The response is complete and reports success.
    Succeeded,
    /// The response is complete and reports failure.
    Failed,
    /// The response is incomplete, and the engine abandons such work when its client disconnects.
    Abandoned,
    /// The response is incomplete, and the engine may continue.
    Unknown,
}

/// How long an engine may take to notice that the client of a build has disconnected.
const NOTICE: Duration = Duration::from_millis(500);

/// How long a builder may then take to commit or abandon a step.
const STEP_END: Duration = Duration::from_secs(10);

/// The images that existed before a request.
pub(super) struct Before {
    /// Maps each reference to the id of the image that it named.
    pub(super) references: HashMap<String, String>,
    pub(super) ids: HashSet<String>,
}

impl DockerGate {
    pub(super) async fn make_images(
        &self,
        route: DockerRoute,
        mut request: ClientRequest,
    ) -> io::Result<()> {
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
            DockerRoute::Build | DockerRoute::BuildSession => RequestEnding::Abandoned,
            _ => RequestEnding::Unknown,
        };
        let passed = match route {
            DockerRoute::BuildSession => {
                let (reader, watch) = session();
                let recorder = BodyRecorder { gate: self, work: &work, reader };
                self.watch_images(request, recorder, watch, &work).await
            }
            DockerRoute::LoadImages => {
                let reader = ArchiveRequests::of(request.head.framing());
                let recorder = BodyRecorder { gate: self, work: &work, reader };
                self.watch_images(request, recorder, ResponseWatch::default(), &work).await
            }
            DockerRoute::Build => {
                let upload = Upload { gate: self, work: &work, read_at: Instant::now() };
                self.watch_images(request, upload, ResponseWatch::default(), &work).await
            }
            _ => self.watch_images(request, (), ResponseWatch::default(), &work).await,
        };
        let mut work = work.into_inner();
        if !work.is_over {
            self.end(&mut work, without_end).await;
        }
        passed
    }

    /// Forwards a request, and records what the response says before the client receives it.
    async fn watch_images<W: ImageWatch>(
        &self,
        request: ClientRequest,
        recorder: impl ChunkHook,
        watch: W,
        work: &Mutex<ImageWork>,
    ) -> io::Result<()> {
        let (sender, parts) = channel(1);
        let recorded = Recorded { watch, sender };
        let passing = self.pass_watched(request, recorder, recorded, W::DRAIN_TIME);
        let (passed, ()) = tokio::join!(passing, self.record(work, parts));
        passed
    }

    async fn begin(&self, route: &DockerRoute, target: &str) -> Result<ImageWork, String> {
        self.check_tag_times().await;
        let names = self.engine.image_names().await.map_err(|error| error.to_string())?;
        let mut work = ImageWork::upon(Before::of(&names));
        if let DockerRoute::Tag(source) = route
            && let Ok(Some(seen)) = self.engine.inspect(Kind::Image, source).await
        {
            // The response to a tag request has no body. This is the image it will name.
            work.reported_ids.extend(seen.references().last().map(str::to_owned));
        }
        work.source = ImageSource::of(route);
        self.intend_references(&mut work, requested_references(route, target)).await?;
        Ok(work)
    }

    /// Records what a response says while it streams. A record that was begun is finished even if
    /// the connection is cut.
    async fn record(&self, work: &Mutex<ImageWork>, mut parts: Receiver<ResponsePart>) {
        while let Some(ResponsePart { reported, ending, done }) = parts.recv().await {
            let mut work = work.lock().await;
            if let Some(reported) = reported {
                self.claim_response(&mut work, &reported).await;
            }
            if let Some(ending) = ending.filter(|_| !work.is_over) {
                self.end(&mut work, ending).await;
            }
            // The connection may have been cut meanwhile.
            let _ = done.send(());
        }
    }

    /// Reads the images that exist before a build once more. Does nothing while another request of
    /// the command makes images, because those would seem foreign.
    async fn read_before_again(&self, work: &mut ImageWork) {
        if self.making.load(Ordering::SeqCst) > 1 {
            return;
        }
        match self.engine.image_names().await {
            Ok(names) => {
                work.before = Before::of(&names);
                for requested in &mut work.requested {
                    requested.set_before(work.before.references.get(&requested.reference));
                }
            }
            Err(error) => debug!(%error, "images cannot be listed again"),
        }
    }

    /// Claims the images, references and steps that a response named.
    async fn claim_response(&self, work: &mut ImageWork, reported: &ReportedImages) {
        let over = self.begin_steps(work, reported).await;
        if !self.claim_new(work, reported).await {
            // The step claims are still needed: they lead to the images at the end.
            work.steps.extend(over);
            return;
        }
        for step in over {
            let evidence = "its image is on record by its id".to_owned();
            self.claims.refute(&step.claim, evidence).await;
        }
    }

    /// Records the build steps that have begun, and returns the steps that are finished by them.
    async fn begin_steps(&self, work: &mut ImageWork, reported: &ReportedImages) -> Vec<BegunStep> {
        if reported.ids.is_empty() && reported.steps.is_empty() {
            return Vec::new();
        }
        let over = std::mem::take(&mut work.steps);
        for step in &reported.steps {
            let name = step_name(&step.container, step.upon.as_deref());
            match self.claims.claim_existing(creel_docker::NAME, Kind::Image, name).await {
                Ok(claim) => {
                    let container = step.container.clone();
                    work.steps.push(BegunStep { claim, container });
                }
                Err(error) => warn!(%error, "a step of a build is not on record"),
            }
        }
        over
    }

    /// Claims what was named and is new, and returns whether all of it is recorded.
    async fn claim_new(&self, work: &mut ImageWork, reported: &ReportedImages) -> bool {
        work.reported_ids.extend(reported.ids.iter().cloned());
        work.cached.extend(reported.cached.iter().cloned());
        let are_recorded = reported.ids.is_empty() || self.claim_unnamed(work).await;
        let references = work.credible(&reported.references);
        self.claim_reported(work, &references).await;
        if work.source == ImageSource::Session && !reported.ids.is_empty() {
            self.claim_requested(work, Certainty::ImagesOnly).await;
        }
        are_recorded
    }

    /// Claims new images without a name whose ids the response reported.
    ///
    /// These are steps of a build, and images whose name another request of the command moved.
    /// Returns whether all of them are recorded.
    async fn claim_unnamed(&self, work: &mut ImageWork) -> bool {
        let names = match with_retry(|| self.engine.image_names()).await {
            Ok(names) => names,
            Err(error) => {
                warn!(%error, "images cannot be listed");
                return false;
            }
        };
        // An image from the cache may still be wanted by the client that made it.
        let is_cached = |image: &&ImageNames| work.cached.iter().any(|id| is_id_of(id, &image.id));
        let cached: Vec<String> =
            names.iter().filter(is_cached).map(|one| one.id.clone()).collect();
        work.before.ids.extend(cached);
        let steps = new_steps_below(work, &names);
        work.reported_ids.extend(steps);
        let mut are_recorded = true;
        for id in newly_reported(work, &names) {
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

    /// Records the outcome of steps whose images no response named, once the engine is done with
    /// them.
    async fn finalize_steps(&self, steps: Vec<BegunStep>) {
        for BegunStep { claim, container } in steps {
            self.await_end_of_step(&container).await;
            let found = with_retry(|| async { self.engine.find(&claim.marks()).await }).await;
            match found.as_deref() {
                Ok([image, ..]) => {
                    self.claims.confirm_as(&claim, &image.id, image.identity()).await;
                }
                Ok([]) => self.claims.refute(&claim, "the step made no image".to_owned()).await,
                Err(error) => warn!(%error, "what a step of a build made is left to the end"),
            }
        }
    }

    /// Waits until a builder has removed the container of a step. By then it has committed the
    /// step, or never will.
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

    /// Records the outcome of the requested references.
    async fn end(&self, work: &mut ImageWork, ending: RequestEnding) {
        work.is_over = true;
        if ending == RequestEnding::Abandoned {
            tokio::time::sleep(NOTICE).await;
        }
        self.finalize_steps(std::mem::take(&mut work.steps)).await;
        match ending {
            RequestEnding::Succeeded => self.claim_requested(work, Certainty::Reported).await,
            RequestEnding::Abandoned if self.is_any_unmade(work).await => {
                tokio::time::sleep(NOTICE).await;
            }
            RequestEnding::Failed | RequestEnding::Abandoned | RequestEnding::Unknown => {}
        }
        if !work.reported_ids.is_empty() {
            self.claim_unnamed(work).await;
        }
        self.refute_requested(work, ending == RequestEnding::Unknown).await;
    }
}

/// Counts a request that makes images for as long as it lasts.
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

/// A part of a response that is held back until it is recorded.
struct ResponsePart {
    reported: Option<ReportedImages>,
    /// How the response ended, if this is its last part.
    ending: Option<RequestEnding>,
    done: oneshot::Sender<()>,
}

/// Holds a response back until what it says is recorded.
struct Recorded<W> {
    watch: W,
    sender: Sender<ResponsePart>,
}

impl<W: ImageWatch> ChunkHook for Recorded<W> {
    async fn before_chunk(&mut self, bytes: &[u8]) {
        self.watch.feed(bytes);
        let reported = self.watch.reported();
        let ending = match self.watch.ending() {
            ResponseEnding::Succeeded => Some(RequestEnding::Succeeded),
            ResponseEnding::Failed => Some(RequestEnding::Failed),
            ResponseEnding::Incomplete => None,
        };
        if reported.is_none() && ending.is_none() {
            return;
        }
        let (done, is_done) = oneshot::channel();
        // The receiver lives until this sender is dropped.
        if self.sender.send(ResponsePart { reported, ending, done }).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

/// Maximum age of the list of images when a part of a build context is forwarded.
const FRESH: Duration = Duration::from_millis(500);

/// Refreshes the list of existing images while the context of a build is uploaded.
///
/// The upload may take long, and the build begins only when the engine has all of it.
struct Upload<'a> {
    gate: &'a DockerGate,
    work: &'a Mutex<ImageWork>,
    read_at: Instant,
}

impl ChunkHook for Upload<'_> {
    async fn before_chunk(&mut self, _: &[u8]) {
        if self.read_at.elapsed() < FRESH {
            return;
        }
        let mut work = self.work.lock().await;
        // Once the engine responds, no refresh is needed.
        if !work.is_over && work.reported_ids.is_empty() {
            self.gate.read_before_again(&mut work).await;
        }
        self.read_at = Instant::now();
    }
}

/// Records what only the body of a request asks for, before the engine receives it.
struct BodyRecorder<'a, A> {
    gate: &'a DockerGate,
    work: &'a Mutex<ImageWork>,
    reader: A,
}

impl<A: RequestReader> ChunkHook for BodyRecorder<'_, A> {
    async fn before_chunk(&mut self, bytes: &[u8]) {
        let requested = self.reader.feed(bytes);
        if requested.is_empty() {
            return;
        }
        let requested = requested.iter().map(|name| familiar(name)).collect();
        let mut work = self.work.lock().await;
        // Such a request takes long, and another client may have made a reference since it began.
        match self.gate.engine.image_names().await {
            Ok(names) => work.before.references = Before::of(&names).references,
            Err(error) => return warn!(%error, "images cannot be listed"),
        }
        // If this fails, the response names the reference again.
        if let Err(error) = self.gate.intend_references(&mut work, requested).await {
            warn!(error, "an image is not on record before it is built");
        }
    }
}

/// Returns the ids that the response named, that exist now without a name, did not exist before,
/// and are not claimed yet.
fn newly_reported(work: &ImageWork, now: &[ImageNames]) -> Vec<String> {
    let is_reported = |image: &&ImageNames| work.reports(&image.id);
    let is_new = |id: &String| !work.before.ids.contains(id) && !work.claimed.contains(id);
    let nameless = now.iter().filter(|image| image.references.is_empty()).filter(is_reported);
    let mut ids: Vec<String> = nameless.map(|image| image.id.clone()).filter(is_new).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the new untagged parents of the images that the response named: the response to a
/// quiet build names only the last one.
fn new_steps_below(work: &ImageWork, now: &[ImageNames]) -> Vec<String> {
    let images: HashMap<&str, &ImageNames> =
        now.iter().map(|image| (image.id.as_str(), image)).collect();
    let mut steps = Vec::new();
    for image in now.iter().filter(|image| !work.before.ids.contains(&image.id)) {
        let mut below = images.get(image.parent.as_str()).filter(|_| work.reports(&image.id));
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

/// Returns whether a full or abbreviated id is that of an image.
fn is_id_of(id: &str, image: &str) -> bool {
    let (id, image) = (id.trim_start_matches("sha256:"), image.trim_start_matches("sha256:"));
    !id.is_empty() && image.starts_with(id)
}

impl ImageWork {
    fn upon(before: Before) -> Self {
        let (requested, recorded, reported_ids, cached, claimed, steps) = Default::default();
        let (source, is_over) = (ImageSource::Other, false);
        Self { before, requested, recorded, reported_ids, cached, claimed, steps, source, is_over }
    }

    /// Returns whether the response names the images behind its references. The response to a load
    /// names only images without a reference.
    pub(super) fn has_reported_images(&self) -> bool {
        self.source != ImageSource::Load && !self.reported_ids.is_empty()
    }

    /// Returns the reported references that the request can have made.
    ///
    /// A build makes only the references that it was asked for. Everything else that looks like a
    /// report is output of a step. Podman adds a registry to short names.
    fn credible(&self, reported: &[String]) -> Vec<String> {
        let is_asked = |name: &str| {
            let asked = self.requested.iter().map(|one| &one.reference);
            asked.chain(&self.recorded).any(|reference| reference == name)
        };
        let is_credible = |name: &&String| {
            let name = familiar(name);
            let short = name.strip_prefix("localhost/").unwrap_or(&name);
            self.source != ImageSource::Build || is_asked(&name) || is_asked(short)
        };
        reported.iter().filter(is_credible).cloned().collect()
    }

    /// Returns whether the response named an image id.
    pub(super) fn reports(&self, image: &str) -> bool {
        self.reported_ids.iter().any(|id| is_id_of(id, image))
    }
}

impl ImageSource {
    fn of(route: &DockerRoute) -> Self {
        match route {
            DockerRoute::Build => Self::Build,
            DockerRoute::BuildSession => Self::Session,
            DockerRoute::LoadImages => Self::Load,
            _ => Self::Other,
        }
    }
}

impl Before {
    fn of(names: &[ImageNames]) -> Self {
        let mut before = Self { references: HashMap::new(), ids: HashSet::new() };
        for image in names {
            before.ids.insert(image.id.clone());
            let references = image.references.iter().map(|name| (name.clone(), image.id.clone()));
            before.references.extend(references);
        }
        before
    }
}

/// Returns the references that a request asks for.
fn requested_references(route: &DockerRoute, target: &str) -> Vec<String> {
    let tag = route::parameter(target, "tag");
    let with_tag = |name: Option<String>| name.map(|name| joined(&name, tag.as_deref()));
    let one = match route {
        DockerRoute::Build => {
            let tags = route::parameters(target, "t");
            return tags.iter().filter(|tag| !tag.is_empty()).map(|tag| familiar(tag)).collect();
        }
        DockerRoute::CreateImage => with_tag(
            route::parameter(target, "fromImage").or_else(|| route::parameter(target, "repo")),
        ),
        DockerRoute::Commit | DockerRoute::Tag(_) => with_tag(route::parameter(target, "repo")),
        _ => None,
    };
    one.into_iter().collect()
}

/// Returns the target to forward.
fn adapted(route: &DockerRoute, target: &str) -> String {
    match route {
        // Otherwise a step that fails leaves its container behind, and nothing labels it.
        DockerRoute::Build => route::with_parameter(target, "forcerm", "1"),
        // The container's labels are copied into the image, and from there into every container
        // made from it. They can only be emptied.
        DockerRoute::Commit => {
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
        let requested = |route: DockerRoute, target: &str| requested_references(&route, target);
        assert_eq!(requested(DockerRoute::Build, "/build?t=a&t=b:2&t="), ["a:latest", "b:2"]);
        assert_eq!(
            requested(DockerRoute::CreateImage, "/images/create?fromImage=a&tag=3"),
            ["a:3"]
        );
        assert_eq!(
            requested(DockerRoute::CreateImage, "/images/create?fromSrc=-&repo=x"),
            ["x:latest"]
        );
        assert_eq!(requested(DockerRoute::Commit, "/commit?container=c"), [""; 0]);
        assert_eq!(requested(DockerRoute::Tag("x".into()), "/images/x/tag?repo=y&tag=1"), ["y:1"]);
    }

    #[test]
    fn only_ids_that_are_new_named_and_nameless_are_claimed() {
        let image = |id: &str, references: &[&str]| ImageNames {
            id: format!("sha256:{id}"),
            parent: String::new(),
            references: references.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut work = ImageWork::upon(Before::of(&[image("11", &["old:1"]), image("22", &[])]));
        let now = [
            image("11", &["old:1", "new:1"]),
            image("22", &[]),
            image("33", &[]),
            image("44", &[]),
            image("55", &["named:1"]),
        ];
        work.reported_ids.extend(["22", "sha256:33", "11", "55"].map(str::to_owned));
        assert_eq!(newly_reported(&work, &now), ["sha256:33"]);
    }

    #[test]
    fn output_of_a_build_that_looks_like_a_report_is_not_one() {
        let reported = ["app:1", "localhost/app:1", "foreign:latest"].map(str::to_owned);
        let mut work = ImageWork::upon(Before::of(&[]));
        work.recorded.insert("app:1".to_owned());
        assert_eq!(work.credible(&reported), reported);
        work.source = ImageSource::of(&DockerRoute::Build);
        assert_eq!(work.credible(&reported), reported[..2]);
    }

    #[test]
    fn steps_below_the_image_of_a_quiet_build_are_claimed_as_far_as_they_are_new() {
        let image = |id: &str, parent: &str, references: &[&str]| ImageNames {
            id: id.to_owned(),
            parent: parent.to_owned(),
            references: references.iter().map(|&name| name.to_owned()).collect(),
        };
        let before = [image("base", "", &["base:1"]), image("theirs", "base", &[])];
        let mut work = ImageWork::upon(Before::of(&before));
        let mut now = before.to_vec();
        now.extend([
            image("first", "theirs", &[]),
            image("second", "first", &[]),
            image("last", "second", &["app:1"]),
            image("foreign", "first", &[]),
        ]);
        work.reported_ids.insert("last".to_owned());
        assert_eq!(new_steps_below(&work, &now), ["second", "first"]);
    }
}
