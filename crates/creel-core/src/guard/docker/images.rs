//! Images: what a build, a pull, a load, an import, a commit or a tag adds.
//!
//! Images are never labelled: containers would inherit it. What a request
//! names, or the answer to it, is claimed by reference, and only if no such
//! reference existed before. Somebody else's names of the same image stay.

use std::collections::HashSet;
use std::io;

use tracing::warn;

use crate::guard::claims::Claim;
use crate::labels;
use crate::provider::docker::ImageNames;
use crate::provider::{Kind, ProviderName};

use super::answer::{AnswerWatch, Named, SessionWatch};
use super::gate::{DockerGate, Request};
use super::reference::{familiar, joined};
use super::route::{self, Route};

/// A request that makes images.
struct Work {
    /// What existed before.
    before: Before,
    /// The references it asks for, each with its claim.
    asked: Vec<(String, Claim)>,
}

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
            return self.pass(request, |_| {}).await;
        }
        let work = match self.begin(asked_for(&route, &target)).await {
            Ok(work) => work,
            Err(reason) => return request.refuse(500, &reason).await,
        };
        if route == Route::BuildSession {
            let mut watch = SessionWatch::default();
            let passed = self.pass(request, |bytes| watch.feed(bytes)).await;
            self.end(work, Some((200, watch.finish()))).await;
            return passed;
        }
        let mut watch = AnswerWatch::default();
        let passed = self.pass(request, |bytes| watch.feed(bytes)).await;
        self.end(work, watch.finish()).await;
        passed
    }

    async fn begin(&self, asked: Vec<String>) -> Result<Work, String> {
        let names = self.engine.image_names().await.map_err(|error| error.to_string())?;
        let before = Before::of(names);
        let mut claims = Vec::new();
        for reference in asked {
            if before.references.contains(&reference) {
                continue;
            }
            let name = Some(reference.clone());
            match self.claims.intend(ProviderName::Docker, Kind::Image, name).await {
                Ok(claim) => claims.push((reference, claim)),
                Err(error) => return Err(format!("nothing was created: {error}")),
            }
        }
        Ok(Work { before, asked: claims })
    }

    /// Compares with before, and claims what is new and was named.
    async fn end(&self, work: Work, answer: Option<(u16, Named)>) {
        let names = match self.engine.image_names().await {
            Ok(names) => names,
            Err(error) => return warn!(%error, "new images are left to the end"),
        };
        let now = Before::of(names.clone());
        for (reference, claim) in &work.asked {
            if now.references.contains(reference) {
                self.claims.confirm(claim, reference).await;
            } else if answer.is_some() {
                let evidence = "the engine has answered, and there is no such reference";
                self.claims.refute(claim, evidence.to_owned()).await;
            }
        }
        let Some((_, named)) = answer else { return };
        for object in newly_named(&work, &names, &named) {
            if let Err(error) = self.claims.adopt(ProviderName::Docker, Kind::Image, &object).await
            {
                warn!(object, %error, "an image could not be claimed, and stays");
            }
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
    fn of(names: Vec<ImageNames>) -> Self {
        let mut before = Self { references: HashSet::new(), ids: HashSet::new() };
        for image in names {
            before.ids.insert(image.id);
            before.references.extend(image.references);
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
    fn only_what_is_new_and_named_is_claimed() {
        let image = |id: &str, references: &[&str]| ImageNames {
            id: format!("sha256:{id}"),
            references: references.iter().map(|&name| name.to_owned()).collect(),
        };
        let before = Before::of(vec![image("11", &["old:1"]), image("22", &[])]);
        let work = Work { before, asked: Vec::new() };
        let now = [
            image("11", &["old:1", "new:1", "foreign:1"]),
            image("22", &[]),
            image("33", &[]),
            image("44", &[]),
        ];
        let named = Named {
            references: vec!["docker.io/library/new:1".into(), "old:1".into(), "lost:1".into()],
            ids: vec!["22".into(), "sha256:33".into(), "11".into()],
        };
        assert_eq!(newly_named(&work, &now, &named), ["new:1", "sha256:33"]);
    }
}
