//! The age of images, which a list does not tell.
//!
//! The `Created` of an image is the time of its base or of a cache entry, so it proves nothing
//! about when the image came to this engine. The time of its last tag does; an engine tells it
//! only of one image at a time, and of some not at all. Where it does not, the ledger may know
//! since when the image is there. Nothing is changed here.

use futures::StreamExt;
use jiff::Timestamp;

use crate::provider::{Kind, Observed, ProviderError, Providers};

use super::{ProtectRule, Roll, Selector};

/// How many images are inspected at once.
const CONCURRENCY: usize = 16;

/// What decides whose age is needed, and who knows it.
#[derive(Debug, Clone, Copy)]
pub struct Dating<'a> {
    /// What is meant.
    pub selectors: &'a [Selector],
    /// What is never released.
    pub protect: &'a [ProtectRule],
    /// What the ledger knows.
    pub roll: &'a Roll,
    /// Where the images are.
    pub providers: &'a Providers,
    /// The present time.
    pub now: Timestamp,
}

/// Finds out the age of every image for which it makes a difference.
///
/// # Errors
///
/// Fails when a provider cannot be asked.
pub async fn date_images(
    mut inventory: Vec<Observed>,
    dating: Dating<'_>,
) -> Result<Vec<Observed>, ProviderError> {
    let wanted = |(_, seen): &(usize, &Observed)| dating.needs_age(seen);
    let looks = inventory.iter().enumerate().filter(wanted).map(|(place, seen)| async move {
        let provider = dating.providers.get(seen.provider)?;
        let close = provider.inspect(seen.kind, &seen.id).await?;
        Ok((place, close.and_then(|close| close.tagged_at)))
    });
    let looks: Vec<_> = looks.collect();
    let dated: Vec<Result<(usize, Option<Timestamp>), ProviderError>> =
        futures::stream::iter(looks).buffer_unordered(CONCURRENCY).collect().await;
    for dated in dated {
        let (place, tagged_at) = dated?;
        inventory[place].tagged_at = tagged_at;
    }
    for seen in &mut inventory {
        dating.roll.date(seen);
    }
    Ok(inventory)
}

impl Dating<'_> {
    fn needs_age(&self, seen: &Observed) -> bool {
        let youth_protects = self.protect.iter().any(|rule| rule.younger_than.is_some());
        let matters = |selector: &&Selector| youth_protects || selector.older_than.is_some();
        seen.kind == Kind::Image
            && seen.tagged_at.is_none()
            && self.selectors.iter().filter(matters).any(|it| it.fits_at_any_age(seen, self.now))
    }
}
