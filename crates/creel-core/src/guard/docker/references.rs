//! References of images: what a request asks for, and what the engine says it made.
//!
//! A reference alone proves nothing. Another client may put it on another image,
//! and an identical rebuild yields the same image under it. So it counts
//! as the command's only when an answer to the command says that it was made,
//! with the image that it names and the time at which it was put there. One
//! that named another image before is recorded with that image, and put back on
//! it at the end. What no answer told of is left open, kept, and reported.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{debug, warn};

use crate::guard::claims::Claim;
use crate::ledger::{LedgerError, Record};
use crate::provider::docker::familiar;
use crate::provider::{Identity, Kind, Provider, ProviderError, ProviderName};

use super::gate::DockerGate;
use super::images::Work;

/// How often an image is inspected while the engine does not answer.
const INSPECTIONS: u32 = 5;
/// The pause between two of these.
const BETWEEN_INSPECTIONS: Duration = Duration::from_millis(100);

/// A reference that a request asks for.
pub(super) struct Asked {
    pub(super) reference: String,
    claim: Claim,
    /// The image that it named before.
    before: Option<String>,
    /// What is on record of it, where the command made it before.
    earlier: Option<Record>,
}

/// References that a request asked for and did not prove to have made. Where requests run side by
/// side, another one may have moved them on.
#[derive(Debug, Default)]
pub(super) struct UnprovenReferences(Mutex<Vec<(String, Claim)>>);

impl UnprovenReferences {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, Claim)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, asked: &Asked) {
        // What was on record before has no claim of its own.
        if asked.earlier.is_none() {
            self.lock().push((asked.reference.clone(), asked.claim.clone()));
        }
    }

    /// Takes out the claims of a reference.
    fn take(&self, reference: &str) -> Vec<Claim> {
        let is_its = |(claimed, _): &mut (String, Claim)| claimed == reference;
        self.lock().extract_if(.., is_its).map(|(_, claim)| claim).collect()
    }
}

/// What a reference names now.
enum Now {
    /// Nothing: there is no such reference.
    Absent,
    /// The image that it named before.
    Unchanged,
    /// This image, which it did not name before.
    Moved(String),
}

/// How sure it is that a request made its references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The answer says so.
    Made,
    /// The answer names images, and the references among them are not told.
    TellsImages,
}

impl DockerGate {
    /// Records that references are about to be made or moved.
    pub(super) async fn intend_references(
        &self,
        work: &mut Work,
        asked: Vec<String>,
    ) -> Result<(), String> {
        if asked.is_empty() {
            return Ok(());
        }
        let failed = |error| format!("nothing was created: {error}");
        let mine = self.claims.open(Kind::Image).await.map_err(failed)?;
        for reference in asked {
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
            work.asked.push(Asked { reference, claim, before, earlier });
        }
        Ok(())
    }

    /// Puts on record what the engine just said it made, among what was asked for and besides.
    pub(super) async fn claim_told(&self, work: &mut Work, told: &[String]) {
        for reference in told.iter().map(|name| familiar(name)) {
            let is_asked = |asked: &Asked| asked.reference == reference;
            if !work.asked.iter().any(is_asked) {
                if work.settled.contains(&reference) || !self.has_moved(work, &reference).await {
                    continue;
                }
                if let Err(error) = self.intend_references(work, vec![reference.clone()]).await {
                    warn!(reference, error, "an image could not be claimed, and stays");
                    continue;
                }
            }
            if let Some(place) = work.asked.iter().position(is_asked) {
                let asked = work.asked.remove(place);
                let left = self.confirm_reference(work, asked, Answer::Made).await;
                work.asked.extend(left);
            }
        }
    }

    /// Puts every reference on record that was asked for and that the answer proves.
    pub(super) async fn claim_asked(&self, work: &mut Work, answer: Answer) {
        for asked in std::mem::take(&mut work.asked) {
            let left = self.confirm_reference(work, asked, answer).await;
            work.asked.extend(left);
        }
    }

    /// Closes what was asked for and did not come about. What may have come about without being
    /// told stays open: at the end it is kept, and reported.
    pub(super) async fn refute_asked(&self, work: &mut Work, may_land: bool) {
        for asked in std::mem::take(&mut work.asked) {
            let is_unchanged = match self.now(&asked.reference, asked.before.as_deref()).await {
                Some(Now::Absent | Now::Unchanged) => true,
                Some(Now::Moved(_)) | None => false,
            };
            if is_unchanged && !may_land && asked.earlier.is_none() {
                let evidence = "the engine is done with it, and there is no such reference";
                self.claims.refute(&asked.claim, evidence.to_owned()).await;
            } else if !may_land {
                self.unproven.add(&asked);
                self.refute_moved_on(&asked.reference).await;
            }
        }
    }

    /// Closes the claims of requests that ended without proof on a reference which another
    /// request of the command has on record.
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

    /// Returns whether any reference that was asked for is not there, or as it was.
    pub(super) async fn is_any_unmade(&self, work: &Work) -> bool {
        for asked in &work.asked {
            if !matches!(
                self.now(&asked.reference, asked.before.as_deref()).await,
                Some(Now::Moved(_))
            ) {
                return true;
            }
        }
        false
    }

    async fn has_moved(&self, work: &Work, reference: &str) -> bool {
        let before = work.before.references.get(reference).map(String::as_str);
        matches!(self.now(reference, before).await, Some(Now::Moved(_)))
    }

    /// Inspects what a reference names; `None` if the engine does not say.
    async fn now(&self, reference: &str, before: Option<&str>) -> Option<Now> {
        match asked_again(|| self.engine.inspect(Kind::Image, reference)).await {
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

    /// Puts a reference on record that the engine says it made; returns it if that is not proven.
    async fn confirm_reference(
        &self,
        work: &mut Work,
        asked: Asked,
        answer: Answer,
    ) -> Option<Asked> {
        let image = match self.now(&asked.reference, asked.before.as_deref()).await {
            Some(Now::Moved(image)) => image,
            Some(Now::Unchanged) if answer == Answer::Made => {
                self.keep_as_it_was(work, asked).await;
                return None;
            }
            Some(Now::Unchanged | Now::Absent) | None => return Some(asked),
        };
        if !work.tells(&image) && (answer == Answer::TellsImages || work.has_told_images()) {
            // Another build reports its image later, or another client was faster.
            return Some(asked);
        }
        work.settled.insert(asked.reference.clone());
        if asked.reference.contains('@') {
            self.confirm_digest(work, asked, image).await;
        } else {
            self.record_reference(work, asked, image).await;
        }
        None
    }

    /// Closes the claim of a reference that names what it named before. It was put there once more,
    /// which the other names of the command on that image are recorded with.
    async fn keep_as_it_was(&self, work: &mut Work, asked: Asked) {
        if let Some(image) = &asked.before
            && let Ok(Some(at)) = self.engine.tagged_at(image).await
        {
            self.note_tag_time(image, at).await;
        }
        if asked.earlier.is_none() {
            let evidence = "it names the image that it named before";
            self.claims.refute(&asked.claim, evidence.to_owned()).await;
        }
        work.settled.insert(asked.reference);
    }

    /// Records an image that was pulled by its digest: that is no name, and goes with the image.
    async fn confirm_digest(&self, work: &Work, asked: Asked, image: String) {
        if work.before.ids.contains(&image) {
            let evidence = "its image was there before";
            return self.claims.refute(&asked.claim, evidence.to_owned()).await;
        }
        let identity = Identity::nameless_image(image.as_str());
        self.claims.confirm_as(&asked.claim, &image, Some(identity)).await;
    }

    /// Returns what was asked for as the next move of a reference that another request of the
    /// command put on record meanwhile: one reference has one record.
    async fn merged(&self, asked: Asked, mine: &[Record]) -> Asked {
        let is_it = |record: &&Record| {
            record.state.object() == Some(&asked.reference) && record.id != asked.claim.resource
        };
        let Some(record) = mine.iter().find(is_it).filter(|_| asked.earlier.is_none()) else {
            return asked;
        };
        self.claims.refute(&asked.claim, format!("it is on record as {}", record.id)).await;
        Asked { claim: Claim::of(record), earlier: Some(record.clone()), ..asked }
    }

    async fn record_reference(&self, work: &mut Work, asked: Asked, image: String) {
        let mine = self.claims.open(Kind::Image).await.unwrap_or_default();
        let asked = self.merged(asked, &mine).await;
        let is_ours =
            |id: &str| !work.before.ids.contains(id) || mine.iter().any(|one| is_of(one, id));
        let read = asked_again(|| self.engine.image_identity(&asked.reference, is_ours));
        let identity = match read.await {
            // Another client moved it since it was inspected.
            Ok(Some(Identity::Tag { image: named, .. })) if named != image => {
                return self.unproven.add(&asked);
            }
            Ok(identity) => identity,
            Err(error) => {
                warn!(reference = asked.reference, %error, "the identity of an image could not be read");
                None
            }
        };
        let Some(identity @ Identity::Tag { .. }) = identity else {
            // Without it the reference is kept at the end.
            return self.claims.confirm_as(&asked.claim, &asked.reference, None).await;
        };
        let (replaces, earlier) = (asked.replaces(), asked.earlier_image());
        let is_new_name = replaces.is_none();
        let identity = identity.of_our_reference(replaces);
        self.claims.confirm_as(&asked.claim, &asked.reference, Some(identity.clone())).await;
        if let Identity::Tag { tagged_at: Some(at), .. } = identity {
            self.note_tag_time(&image, at).await;
        }
        // Moving a name leaves its image behind, which is on record by its id.
        if let Some(image) = earlier {
            self.adopt_or_warn(&image).await;
        }
        if is_ours(&image) {
            self.adopt_or_warn(&image).await;
        }
        if is_new_name {
            self.name_image(&image, &asked.reference).await;
        }
        self.refute_moved_on(&asked.reference).await;
    }

    /// Records a name of the command with the image that it is on, if that is on record.
    async fn name_image(&self, image: &str, reference: &str) {
        let Ok(mine) = self.claims.open(Kind::Image).await else { return };
        let Some(record) = mine.iter().find(|record| record.state.object() == Some(image)) else {
            return;
        };
        if let (Some(identity), Some(at)) = (&record.identity, self.tag_times.newest(image)) {
            let identity = identity.clone().named(reference).tagged_again(at);
            self.claims.refresh(record, identity).await;
        }
    }

    /// Puts an image of the command on record by its id, unless it is.
    pub(super) async fn adopt_image(&self, image: &str) -> Result<(), LedgerError> {
        let mine = self.claims.open(Kind::Image).await?;
        let is_known = mine.iter().any(|record| record.state.object() == Some(image));
        let seen = asked_again(|| self.engine.inspect(Kind::Image, image));
        // One that may be there is put on record: its absence is verified in the end.
        if is_known || matches!(seen.await, Ok(None)) {
            return Ok(());
        }
        let identity = Identity::nameless_image(image);
        self.claims.adopt(ProviderName::Docker, Kind::Image, image, Some(identity)).await
    }

    /// As [`DockerGate::adopt_image`]; a failure is written to the log.
    async fn adopt_or_warn(&self, image: &str) {
        if let Err(error) = self.adopt_image(image).await {
            warn!(image, %error, "an image could not be claimed, and stays");
        }
    }
}

/// Asks an engine, again where it does not answer: what is not known now is kept for ever.
pub(super) async fn asked_again<T, A>(ask: impl Fn() -> A) -> Result<T, ProviderError>
where
    A: Future<Output = Result<T, ProviderError>>,
{
    for _ in 1..INSPECTIONS {
        match ask().await {
            Err(error) => {
                debug!(%error, "an image is inspected again");
                tokio::time::sleep(BETWEEN_INSPECTIONS).await;
            }
            answer => return answer,
        }
    }
    ask().await
}

impl Asked {
    /// Corrects which image the reference named before.
    pub(super) fn set_before(&mut self, image: Option<&String>) {
        self.before = image.cloned();
    }

    /// Returns the image that the reference goes back to at the end.
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

/// Returns whether a record says that an image is the command's.
fn is_of(record: &Record, image: &str) -> bool {
    match &record.identity {
        Some(Identity::Image { id, .. }) => id == image,
        Some(Identity::Tag { image: named, image_is_ours, .. }) => *image_is_ours && named == image,
        _ => false,
    }
}
