//! Images: what a build, a pull, a load, an import, a commit or a tag adds.
//!
//! Images are never labelled: containers would inherit it. What a request
//! names, or the answer to it, is claimed by reference, and only if no such
//! reference existed before. Somebody else's names of the same image stay.
//!
//! What the request names is on record before it is passed on; what only the
//! answer names is put on record while the answer streams, so that a crash in
//! the middle of a long build leaves the last step of it at most.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::warn;

use crate::guard::claims::Claim;
use crate::labels;
use crate::provider::docker::{ImageNames, familiar, joined, step_name};
use crate::provider::{Identity, Kind, Provider, ProviderError, ProviderName};

use super::answer::{AnswerWatch, Asks, Named, SessionWatch, SessionWishes, Watch};
use super::archive::ArchiveWishes;
use super::gate::{DockerGate, Request};
use super::route::{self, Route};
use super::stream::Foresight;

/// A request that makes images.
struct Work {
    /// What existed before, or is claimed since.
    before: Before,
    /// The references it asks for, each with its claim.
    asked: Vec<(String, Claim)>,
    /// The steps of a build that were begun last: what they make has no name yet.
    steps: Vec<Claim>,
}

/// How a request that makes images ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// With the whole answer.
    Answered,
    /// Without it, and the engine gives such work up when its client is gone.
    GivenUp,
    /// Without it, and the engine may go on.
    Unknown,
}

/// How long an engine may take to notice that nobody waits for a build any more.
const NOTICE: Duration = Duration::from_millis(500);

/// The images that existed before a request.
struct Before {
    references: HashSet<String>,
    ids: HashSet<String>,
}

impl DockerGate {
    pub(super) async fn make_images(&self, route: Route, mut request: Request) -> io::Result<()> {
        let target = adapted(&route, request.head.target());
        request.head.set_target(&target);
        if self.policy.keep_images {
            return self.pass(request).await;
        }
        let work = match self.begin(asked_for(&route, &target)).await {
            Ok(work) => Mutex::new(work),
            Err(reason) => return request.refuse(500, &reason).await,
        };
        let (passed, is_over) = match route {
            Route::BuildSession => {
                let wishes = Wishes { gate: self, work: &work, asks: SessionWishes::default() };
                self.watch_images::<SessionWatch>(request, wishes, &work).await
            }
            Route::LoadImages => {
                let asks = ArchiveWishes::of(request.head.framing());
                let wishes = Wishes { gate: self, work: &work, asks };
                self.watch_images::<AnswerWatch>(request, wishes, &work).await
            }
            _ => self.watch_images::<AnswerWatch>(request, (), &work).await,
        };
        let ending = match route {
            _ if is_over => Ending::Answered,
            Route::Build | Route::BuildSession => Ending::GivenUp,
            _ => Ending::Unknown,
        };
        self.end(work.into_inner(), ending).await;
        passed
    }

    /// Passes a request on, and claims what is named on the way; returns whether everything was
    /// said.
    async fn watch_images<W: Watch>(
        &self,
        request: Request,
        wishes: impl Foresight,
        work: &Mutex<Work>,
    ) -> (io::Result<()>, bool) {
        let (tell, named) = unbounded_channel();
        let mut watch = W::default();
        let passing = async {
            let observe = |bytes: &[u8]| {
                watch.feed(bytes);
                // The other end lives until this one is dropped.
                let _ = watch.named().map(|named| tell.send(named));
            };
            let passed = self.pass_watched(request, wishes, observe).await;
            drop(tell);
            passed
        };
        let (passed, ()) = tokio::join!(passing, self.claim_named(work, named));
        (passed, watch.is_over())
    }

    async fn begin(&self, asked: Vec<String>) -> Result<Work, String> {
        let names = self.engine.image_names().await.map_err(|error| error.to_string())?;
        let mut work = Work { before: Before::of(&names), asked: Vec::new(), steps: Vec::new() };
        self.intend_references(&mut work, asked).await?;
        Ok(work)
    }

    /// Records that references are about to be made, where they do not exist.
    async fn intend_references(&self, work: &mut Work, asked: Vec<String>) -> Result<(), String> {
        for reference in asked {
            if work.before.references.contains(&reference) {
                continue;
            }
            let name = Some(reference.clone());
            match self.claims.intend(ProviderName::Docker, Kind::Image, name).await {
                Ok(claim) => work.asked.push((reference, claim)),
                Err(error) => return Err(format!("nothing was created: {error}")),
            }
        }
        Ok(())
    }

    /// Claims what is named, as it is named.
    async fn claim_named(&self, work: &Mutex<Work>, mut named: UnboundedReceiver<Named>) {
        while let Some(named) = named.recv().await {
            let mut work = work.lock().await;
            let over = self.begin_steps(&mut work, &named).await;
            if let Err(error) = self.claim_new(&mut work, &named).await {
                warn!(%error, "new images cannot be listed");
                work.steps.extend(over);
                continue;
            }
            for step in over {
                self.claims.refute(&step, "its image is on record by its id".to_owned()).await;
            }
        }
    }

    /// Puts steps of a build on record that have begun; returns those that are over with it.
    async fn begin_steps(&self, work: &mut Work, named: &Named) -> Vec<Claim> {
        if named.ids.is_empty() && named.steps.is_empty() {
            return Vec::new();
        }
        let over = std::mem::take(&mut work.steps);
        for container in &named.steps {
            let name = Some(step_name(container));
            match self.claims.intend(ProviderName::Docker, Kind::Image, name).await {
                Ok(claim) => work.steps.push(claim),
                Err(error) => warn!(%error, "a step of a build is not on record"),
            }
        }
        over
    }

    /// Claims what was named and is new.
    async fn claim_new(&self, work: &mut Work, named: &Named) -> Result<(), ProviderError> {
        if named.references.is_empty() && named.ids.is_empty() {
            return Ok(());
        }
        let names = self.engine.image_names().await?;
        for object in newly_named(work, &names, named) {
            let identity = self.identity_of(&work.before, &object).await;
            let adopted =
                self.claims.adopt(ProviderName::Docker, Kind::Image, &object, identity).await;
            if let Err(error) = adopted {
                warn!(object, %error, "an image could not be claimed, and stays");
            }
            work.before.note(object);
        }
        Ok(())
    }

    /// Reads what tells a new image or reference from a replacement; without it the object stays.
    async fn identity_of(&self, before: &Before, object: &str) -> Option<Identity> {
        match self.engine.image_identity(object, |id| !before.ids.contains(id)).await {
            Ok(identity) => identity,
            Err(error) => {
                warn!(object, %error, "the identity of an image could not be read");
                None
            }
        }
    }

    /// Records what came of steps whose images nobody named; the engine is done with them.
    async fn settle_steps(&self, steps: Vec<Claim>) {
        for claim in steps {
            match self.engine.find(&claim.marks()).await.as_deref() {
                Ok([image, ..]) => {
                    self.claims.confirm_as(&claim, &image.id, image.identity()).await;
                }
                Ok([]) => self.claims.refute(&claim, "the step made no image".to_owned()).await,
                Err(error) => warn!(%error, "what a step of a build made is left to the end"),
            }
        }
    }

    /// Records what came of the references that were asked for.
    async fn end(&self, mut work: Work, ending: Ending) {
        if ending == Ending::GivenUp && !work.steps.is_empty() {
            tokio::time::sleep(NOTICE).await;
        }
        self.settle_steps(std::mem::take(&mut work.steps)).await;
        let mut there = self.references(&work).await;
        let is_absent = |there: &Option<Before>| {
            let has =
                |reference| there.as_ref().is_some_and(|now| now.references.contains(reference));
            work.asked.iter().any(|(reference, _)| !has(reference))
        };
        if ending == Ending::GivenUp && is_absent(&there) {
            tokio::time::sleep(NOTICE).await;
            there = self.references(&work).await;
        }
        // Without a list the intents stay open, and are searched for at the end.
        let Some(now) = there else { return };
        for (reference, claim) in &work.asked {
            if now.references.contains(reference) {
                let identity = self.identity_of(&work.before, reference).await;
                self.claims.confirm_as(claim, reference, identity).await;
            } else if ending != Ending::Unknown {
                let evidence = "the engine is done with it, and there is no such reference";
                self.claims.refute(claim, evidence.to_owned()).await;
            }
        }
    }

    /// Lists what is there, if anything was asked for.
    async fn references(&self, work: &Work) -> Option<Before> {
        if work.asked.is_empty() {
            return None;
        }
        match self.engine.image_names().await {
            Ok(names) => Some(Before::of(&names)),
            Err(error) => {
                warn!(%error, "new images cannot be listed");
                None
            }
        }
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
            Ok(names) => work.before.references.extend(Before::of(&names).references),
            Err(error) => return warn!(%error, "images cannot be listed"),
        }
        // If it fails, the answer names it once more.
        if let Err(error) = self.gate.intend_references(&mut work, asked).await {
            warn!(error, "an image is not on record before it is built");
        }
    }
}

/// Returns what the answer named, is there now, was not there before, and is not claimed yet:
/// references, and ids that have none.
fn newly_named(work: &Work, now: &[ImageNames], named: &Named) -> Vec<String> {
    let is_asked = |reference: &String| work.asked.iter().any(|(asked, _)| asked == reference);
    let is_new = |reference: &String| !work.before.references.contains(reference);
    let is_there =
        |reference: &String| now.iter().any(|image| image.references.contains(reference));
    let references = named.references.iter().map(|reference| familiar(reference));
    let references = references.filter(|one| is_new(one) && is_there(one) && !is_asked(one));
    let is_named = |image: &&ImageNames| {
        let digest = image.id.trim_start_matches("sha256:");
        named.ids.iter().any(|id| {
            let id = id.trim_start_matches("sha256:");
            !id.is_empty() && digest.starts_with(id)
        })
    };
    let nameless = now.iter().filter(|image| image.references.is_empty()).filter(is_named);
    let ids = nameless.map(|image| image.id.clone()).filter(|id| !work.before.ids.contains(id));
    let mut objects: Vec<String> = references.chain(ids).collect();
    objects.sort_unstable();
    objects.dedup();
    objects
}

impl Before {
    fn of(names: &[ImageNames]) -> Self {
        let mut before = Self { references: HashSet::new(), ids: HashSet::new() };
        for image in names {
            before.ids.insert(image.id.clone());
            before.references.extend(image.references.iter().cloned());
        }
        before
    }

    /// Adds a reference or an id, so that it is not claimed again.
    fn note(&mut self, object: String) {
        self.ids.insert(object.clone());
        self.references.insert(object);
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
    fn only_what_is_new_and_named_is_claimed() {
        let image = |id: &str, references: &[&str]| ImageNames {
            id: format!("sha256:{id}"),
            references: references.iter().map(|&name| name.to_owned()).collect(),
        };
        let before = Before::of(&[image("11", &["old:1"]), image("22", &[])]);
        let work = Work { before, asked: Vec::new(), steps: Vec::new() };
        let now = [
            image("11", &["old:1", "new:1", "foreign:1"]),
            image("22", &[]),
            image("33", &[]),
            image("44", &[]),
        ];
        let named = Named {
            references: vec!["docker.io/library/new:1".into(), "old:1".into(), "lost:1".into()],
            ids: vec!["22".into(), "sha256:33".into(), "11".into()],
            steps: Vec::new(),
        };
        assert_eq!(newly_named(&work, &now, &named), ["new:1", "sha256:33"]);
    }
}
