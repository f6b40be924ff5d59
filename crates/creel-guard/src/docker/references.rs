//! Image references: what a request asks for, and what the engine says it made.
//!
//! A reference alone proves nothing. Another client may put it on another image, and an identical
//! rebuild yields the same image under it. So it counts as the command's only when a response to
//! the command says that it was made. It is recorded with the image that it names and the time at
//! which it was put there. A reference that named another image before is recorded with that image,
//! and put back on it at the end. A reference that no response reports stays open. It is kept and
//! reported.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use creel_docker::familiar;
use creel_ledger::{LedgerError, Record};
use creel_model::provider::{Identity, Kind, Provider, ProviderError};
use tracing::{debug, warn};

use crate::claims::Claim;

use super::gate::DockerGate;
use super::images::ImageWork;

/// How many times an image is inspected while the engine does not respond.
const INSPECTIONS: u32 = 5;
/// The pause between two inspections.
const BETWEEN_INSPECTIONS: Duration = Duration::from_millis(100);

/// A reference that a request asks for.
pub(super) struct RequestedReference {
    pub(super) reference: String,
    claim: Claim,
    /// The image that it named before.
    before: Option<String>,
    /// The existing record of the reference, if the command made it before.
    earlier: Option<Record>,
}

/// References that a request asked for without proof that it made them. Where requests run
/// concurrently, another one may have moved them.
#[derive(Debug, Default)]
pub(super) struct UnprovenReferences(Mutex<Vec<(String, Claim)>>);

impl UnprovenReferences {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, Claim)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, requested: &RequestedReference) {
        // A reference that was recorded before has no claim of its own.
        if requested.earlier.is_none() {
            self.lock().push((requested.reference.clone(), requested.claim.clone()));
        }
    }

    /// Removes and returns the claims of a reference.
    fn take(&self, reference: &str) -> Vec<Claim> {
        let is_its = |(claimed, _): &mut (String, Claim)| claimed == reference;
        self.lock().extract_if(.., is_its).map(|(_, claim)| claim).collect()
    }
}

/// What a reference names now.
enum Now {
    /// The reference does not exist.
    Absent,
    /// The reference names the same image as before.
    Unchanged,
    /// The reference names this image, which it did not name before.
    Moved(String),
}

/// How certain it is that a request made its references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// The response says so.
    Reported,
    /// The response names images, but not the references on them.
    ImagesOnly,
}

impl DockerGate {
    /// Records that references are about to be made or moved.
    pub(super) async fn intend_references(
        &self,
        work: &mut ImageWork,
        requested: Vec<String>,
    ) -> Result<(), String> {
        if requested.is_empty() {
            return Ok(());
        }
        let failed = |error| format!("nothing was created: {error}");
        let mine = self.claims.open(Kind::Image).await.map_err(failed)?;
        for reference in requested {
            let before = work.before.references.get(&reference).cloned();
            let is_it = |record: &&Record| record.state.object() == Some(&reference);
            let earlier = mine.iter().find(is_it).cloned();
            let claim = match &earlier {
                Some(record) => Claim::of(record),
                None => {
                    let intent = self.claims.intend_reference(&reference, before.as_deref());
                    intent.await.map_err(failed)?
                }
            };
            work.requested.push(RequestedReference { reference, claim, before, earlier });
        }
        Ok(())
    }

    /// Records what the engine reports as made, whether or not the request asked for it by name.
    pub(super) async fn claim_reported(&self, work: &mut ImageWork, reported: &[String]) {
        for reference in reported.iter().map(|name| familiar(name)) {
            let is_requested = |requested: &RequestedReference| requested.reference == reference;
            if !work.requested.iter().any(is_requested) {
                if work.recorded.contains(&reference) || !self.has_moved(work, &reference).await {
                    continue;
                }
                if let Err(error) = self.intend_references(work, vec![reference.clone()]).await {
                    warn!(reference, error, "an image could not be claimed, and stays");
                    continue;
                }
            }
            if let Some(place) = work.requested.iter().position(is_requested) {
                let requested = work.requested.remove(place);
                let left = self.confirm_reference(work, requested, Certainty::Reported).await;
                work.requested.extend(left);
            }
        }
    }

    /// Records every requested reference that the response proves.
    pub(super) async fn claim_requested(&self, work: &mut ImageWork, certainty: Certainty) {
        for requested in std::mem::take(&mut work.requested) {
            let left = self.confirm_reference(work, requested, certainty).await;
            work.requested.extend(left);
        }
    }

    /// Closes the claims of requested references that were not made. A reference that may exist
    /// without a report stays open: at the end it is kept, and reported.
    pub(super) async fn refute_requested(&self, work: &mut ImageWork, may_appear: bool) {
        for requested in std::mem::take(&mut work.requested) {
            let is_unchanged =
                match self.now(&requested.reference, requested.before.as_deref()).await {
                    Some(Now::Absent | Now::Unchanged) => true,
                    Some(Now::Moved(_)) | None => false,
                };
            if is_unchanged && !may_appear && requested.earlier.is_none() {
                let evidence = "the engine is done with it, and there is no such reference";
                self.claims.refute(&requested.claim, evidence.to_owned()).await;
            } else if !may_appear {
                self.unproven.add(&requested);
                self.refute_moved_on(&requested.reference).await;
            }
        }
    }

    /// Closes the claims of requests that ended without proof, if another request of the command
    /// has the reference on record.
    async fn refute_moved_on(&self, reference: &str) {
        let mine = self.claims.open(Kind::Image).await.unwrap_or_default();
        let Some(record) = mine.iter().find(|one| one.state.object() == Some(reference)) else {
            return;
        };
        for claim in self.unproven.take(reference) {
            let evidence = format!("another request moved it on; it is on record as {}", record.id);
            self.claims.refute(&claim, evidence).await;
        }
    }

    /// Returns whether any requested reference is absent or unchanged.
    pub(super) async fn is_any_unmade(&self, work: &ImageWork) -> bool {
        for requested in &work.requested {
            if !matches!(
                self.now(&requested.reference, requested.before.as_deref()).await,
                Some(Now::Moved(_))
            ) {
                return true;
            }
        }
        false
    }

    async fn has_moved(&self, work: &ImageWork, reference: &str) -> bool {
        let before = work.before.references.get(reference).map(String::as_str);
        matches!(self.now(reference, before).await, Some(Now::Moved(_)))
    }

    /// Inspects what a reference names. Returns `None` if the engine does not answer.
    async fn now(&self, reference: &str, before: Option<&str>) -> Option<Now> {
        match with_retry(|| self.engine.inspect(Kind::Image, reference)).await {
            Ok(None) => Some(Now::Absent),
            Ok(Some(seen)) => {
                let image = seen.references().last().unwrap_or_default().to_owned();
                Some(if Some(image.as_str()) == before {
                    Now::Unchanged
                } else {
                    Now::Moved(image)
                })
            }
            Err(error) => {
                warn!(reference, %error, "what a reference names is not known");
                None
            }
        }
    }

    /// Records a reference that the engine says it made. Returns the reference if that is not
    /// proven.
    async fn confirm_reference(
        &self,
        work: &mut ImageWork,
        requested: RequestedReference,
        certainty: Certainty,
    ) -> Option<RequestedReference> {
        let image = match self.now(&requested.reference, requested.before.as_deref()).await {
            Some(Now::Moved(image)) => image,
            Some(Now::Unchanged) if certainty == Certainty::Reported => {
                self.keep_unchanged(work, requested).await;
                return None;
            }
            Some(Now::Unchanged | Now::Absent) | None => return Some(requested),
        };
        if !work.reports(&image)
            && (certainty == Certainty::ImagesOnly || work.has_reported_images())
        {
            // Another build reports its image later, or another client was faster.
            return Some(requested);
        }
        work.recorded.insert(requested.reference.clone());
        if requested.reference.contains('@') {
            self.confirm_digest(work, requested, image).await;
        } else {
            self.record_reference(work, requested, image).await;
        }
        None
    }

    /// Closes the claim of a reference that names the same image as before. The engine has tagged
    /// the image again, so the new tag time is recorded with the command's other names on it.
    async fn keep_unchanged(&self, work: &mut ImageWork, requested: RequestedReference) {
        if let Some(image) = &requested.before
            && let Ok(Some(at)) = self.engine.tagged_at(image).await
        {
            self.note_tag_time(image, at).await;
        }
        if requested.earlier.is_none() {
            let evidence = "it names the image that it named before";
            self.claims.refute(&requested.claim, evidence.to_owned()).await;
        }
        work.recorded.insert(requested.reference);
    }

    /// Records an image that was pulled by digest. A digest is not a name, and is removed with the
    /// image.
    async fn confirm_digest(&self, work: &ImageWork, requested: RequestedReference, image: String) {
        if work.before.ids.contains(&image) {
            let evidence = "its image was there before";
            return self.claims.refute(&requested.claim, evidence.to_owned()).await;
        }
        let identity = Identity::nameless_image(image.as_str());
        self.claims.confirm_as(&requested.claim, &image, Some(identity)).await;
    }

    /// Returns the request as the next move of a reference that another request of the command
    /// recorded meanwhile. One reference has one record.
    async fn merged(&self, requested: RequestedReference, mine: &[Record]) -> RequestedReference {
        let is_it = |record: &&Record| {
            record.state.object() == Some(&requested.reference)
                && record.id != requested.claim.resource
        };
        let Some(record) = mine.iter().find(is_it).filter(|_| requested.earlier.is_none()) else {
            return requested;
        };
        self.claims.refute(&requested.claim, format!("it is on record as {}", record.id)).await;
        RequestedReference { claim: Claim::of(record), earlier: Some(record.clone()), ..requested }
    }

    async fn record_reference(
        &self,
        work: &mut ImageWork,
        requested: RequestedReference,
        image: String,
    ) {
        let mine = self.claims.open(Kind::Image).await.unwrap_or_default();
        let requested = self.merged(requested, &mine).await;
        let is_ours =
            |id: &str| !work.before.ids.contains(id) || mine.iter().any(|one| is_of(one, id));
        let read = with_retry(|| self.engine.image_identity(&requested.reference, is_ours));
        let identity = match read.await {
            // Another client moved the reference since it was inspected.
            Ok(Some(Identity::Tag { image: named, .. })) if named != image => {
                return self.unproven.add(&requested);
            }
            Ok(identity) => identity,
            Err(error) => {
                warn!(reference = requested.reference, %error, "the identity of an image could not be read");
                None
            }
        };
        let Some(identity @ Identity::Tag { .. }) = identity else {
            // A reference without an identity is kept at the end.
            return self.claims.confirm_as(&requested.claim, &requested.reference, None).await;
        };
        let (replaces, earlier) = (requested.replaces(), requested.earlier_image());
        let is_new_name = replaces.is_none();
        let identity = identity.of_our_reference(replaces);
        self.claims
            .confirm_as(&requested.claim, &requested.reference, Some(identity.clone()))
            .await;
        if let Identity::Tag { tagged_at: Some(at), .. } = identity {
            self.note_tag_time(&image, at).await;
        }
        // Moving a name leaves its old image behind, which is recorded by its id.
        if let Some(image) = earlier {
            self.adopt_or_warn(&image).await;
        }
        if is_ours(&image) {
            self.adopt_or_warn(&image).await;
        }
        if is_new_name {
            self.name_image(&image, &requested.reference).await;
        }
        self.refute_moved_on(&requested.reference).await;
    }

    /// Adds a name made by the command to the record of its image, if there is one.
    async fn name_image(&self, image: &str, reference: &str) {
        let Ok(mine) = self.claims.open(Kind::Image).await else { return };
        let Some(record) = mine.iter().find(|record| record.state.object() == Some(image)) else {
            return;
        };
        if let (Some(identity), Some(at)) = (&record.identity, self.tag_times.newest(image)) {
            let identity = identity.clone().with_tag(reference).tagged_again(at);
            self.claims.refresh(record, identity).await;
        }
    }

    /// Records an image of the command by its id, unless it is recorded already.
    pub(super) async fn adopt_image(&self, image: &str) -> Result<(), LedgerError> {
        let mine = self.claims.open(Kind::Image).await?;
        let is_known = mine.iter().any(|record| record.state.object() == Some(image));
        let seen = with_retry(|| self.engine.inspect(Kind::Image, image));
        // An image that may exist is recorded: its absence is verified at the end.
        if is_known || matches!(seen.await, Ok(None)) {
            return Ok(());
        }
        let identity = Identity::nameless_image(image);
        self.claims.adopt(creel_docker::NAME, Kind::Image, image, Some(identity)).await
    }

    /// Calls [`DockerGate::adopt_image`], and logs a failure.
    async fn adopt_or_warn(&self, image: &str) {
        if let Err(error) = self.adopt_image(image).await {
            warn!(image, %error, "an image could not be claimed, and stays");
        }
    }
}

/// Sends a request to an engine, and retries while it fails. What stays unknown now is kept for
/// ever.
pub(super) async fn with_retry<T, A>(send: impl Fn() -> A) -> Result<T, ProviderError>
where
    A: Future<Output = Result<T, ProviderError>>,
{
    for _ in 1..INSPECTIONS {
        match send().await {
            Err(error) => {
                debug!(%error, "an image is inspected again");
                tokio::time::sleep(BETWEEN_INSPECTIONS).await;
            }
            result => return result,
        }
    }
    send().await
}

impl RequestedReference {
    /// Corrects the image that the reference named before.
    pub(super) fn set_before(&mut self, image: Option<&String>) {
        self.before = image.cloned();
    }

    /// Returns the image that the reference is put back on at the end.
    fn replaces(&self) -> Option<String> {
        match self.earlier.as_ref().and_then(|record| record.identity.as_ref()) {
            // The command moved its own name once more.
            Some(Identity::Tag { image, replaces, .. })
                if self.before.as_ref().is_none_or(|before| before == image) =>
            {
                replaces.clone()
            }
            _ => self.before.clone(),
        }
    }

    /// Returns the image of the command that the reference named before.
    fn earlier_image(&self) -> Option<String> {
        match self.earlier.as_ref()?.identity.as_ref()? {
            Identity::Tag { image, image_is_ours: true, .. } => Some(image.clone()),
            _ => None,
        }
    }
}

/// Returns whether a record says that an image belongs to the command.
fn is_of(record: &Record, image: &str) -> bool {
    match &record.identity {
        Some(Identity::Image { id, .. }) => id == image,
        Some(Identity::Tag { image: named, image_is_ours, .. }) => *image_is_ours && named == image,
        _ => false,
    }
}
