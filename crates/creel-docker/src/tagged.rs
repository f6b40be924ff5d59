//! Reads the identity of an image or of a reference that was just made.
//!
//! A reference alone proves nothing: another client can put it on another image, or on the same
//! image again. The engine keeps the time at which an image was last tagged. After a load or a pull
//! there is none. Then the reference is put on its own image once more, which changes nothing but
//! that time.

use bollard::errors::Error;
use creel_model::provider::{Identity, Kind, Result};
use jiff::Timestamp;

use super::classify::EngineAction;
use super::encode::encoded;
use super::model::ImageDetails;
use super::provider::DockerProvider;
use super::reference::tag_options;
use super::{observe, read};

impl DockerProvider {
    /// Reads what distinguishes an image, or a reference of one, from a replacement. `is_new`
    /// returns whether an image id was made together with it, and may be removed with its last
    /// reference.
    pub async fn image_identity(
        &self,
        object: &str,
        is_new: impl Fn(&str) -> bool,
    ) -> Result<Option<Identity>> {
        let operation = Self::check("inspect", Kind::Image, object)?;
        let read = self.read_identity(object).await;
        let read =
            read.map_err(|error| self.classified(error, EngineAction::Inspect, operation))?;
        Ok(match read {
            Some(Identity::Tag { reference, image, tagged_at, tags, replaces, .. }) => {
                let image_is_ours = is_new(&image);
                Some(Identity::Tag { reference, image, tagged_at, image_is_ours, tags, replaces })
            }
            other => other,
        })
    }

    /// Returns when a name was last put on an image, if the image exists and has such a time.
    pub async fn tagged_at(&self, image: &str) -> Result<Option<Timestamp>> {
        let operation = Self::check("inspect", Kind::Image, image)?;
        let path = format!("/images/{}/json", encoded(image));
        let details = self.connection().get_if_any::<ImageDetails>(&path).await;
        let details =
            details.map_err(|error| self.classified(error, EngineAction::Inspect, operation))?;
        Ok(details.and_then(|details| observe::instant(&details.metadata.last_tag_time)))
    }

    async fn read_identity(&self, object: &str) -> std::result::Result<Option<Identity>, Error> {
        let inspect = || read::inspect(self.connection(), Kind::Image, object);
        let Some(seen) = inspect().await? else { return Ok(None) };
        let Some(Identity::Tag { image, tagged_at: None, .. }) = &seen.identity else {
            return Ok(seen.identity);
        };
        let Some(options) = tag_options(object) else { return Ok(seen.identity) };
        // By the reference, not by the id: a reference that was moved meanwhile stays where it is.
        self.connection().library().await?.tag_image(object, Some(options)).await?;
        let again = inspect().await?.and_then(|seen| seen.identity);
        let is_same =
            |now: &Identity| matches!(now, Identity::Tag { image: now, .. } if now == image);
        Ok(again.filter(is_same))
    }
}
