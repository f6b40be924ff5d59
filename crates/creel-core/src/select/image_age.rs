//! Determines the age of images, which a list does not report.
//!
//! The `Created` of an image is the time of its base or of a cache entry, so it does not show when
//! the image came to this engine. The time of its last tag does. An engine reports that time for
//! only one image at a time, and for some images not at all. Then the ledger may know how long the
//! image has existed. This module changes nothing.

use creel_model::provider::{Kind, Observed, ProviderError, Providers};
use futures::StreamExt;
use jiff::Timestamp;

use super::{ProtectRule, RecordIndex, Selector};

/// How many images are inspected at once.
const CONCURRENCY: usize = 16;

/// The context that decides which images need an age, and where to get it.
#[derive(Debug, Clone, Copy)]
pub struct Dating<'a> {
    /// The selectors in use.
    pub selectors: &'a [Selector],
    /// What is never released.
    pub protect: &'a [ProtectRule],
    /// The records of the ledger.
    pub record_index: &'a RecordIndex,
    /// The providers of the images.
    pub providers: &'a Providers,
    /// The present time.
    pub now: Timestamp,
}

/// Determines the age of every image for which it makes a difference.
///
/// # Errors
///
/// Fails when a provider cannot be reached.
pub async fn date_images(
    mut inventory: Vec<Observed>,
    dating: Dating<'_>,
) -> Result<Vec<Observed>, ProviderError> {
    let wanted = |(_, seen): &(usize, &Observed)| dating.needs_age(seen);
    let inspections = inventory.iter().enumerate().filter(wanted).map(|(place, seen)| async move {
        let provider = dating.providers.get(seen.provider)?;
        let close = provider.inspect(seen.kind, &seen.id).await?;
        Ok((place, close.and_then(|close| close.tagged_at)))
    });
    let inspections: Vec<_> = inspections.collect();
    let dated: Vec<Result<(usize, Option<Timestamp>), ProviderError>> =
        futures::stream::iter(inspections).buffer_unordered(CONCURRENCY).collect().await;
    for dated in dated {
        let (place, tagged_at) = dated?;
        inventory[place].tagged_at = tagged_at;
    }
    for seen in &mut inventory {
        dating.record_index.date(seen);
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
