//! The identity of an image or of a reference, read when it was just made.
//!
//! A reference alone proves nothing: somebody else can put it on another image,
//! or on the same image again. The engine keeps the time at which an image was
//! tagged last. After a load or a pull there is none; then the reference is put
//! on its own image once more, which changes nothing but that time.

use bollard::errors::Error;
use bollard::query_parameters::TagImageOptions;

use crate::provider::{Identity, Kind, Result};

use super::classify::Act;
use super::provider::DockerProvider;
use super::read;

impl DockerProvider {
    /// Reads what tells an image, or a reference of one, from a replacement. `is_new` says
    /// whether an image id was made together with it, and may go with its last reference.
    pub(crate) async fn image_identity(
        &self,
        object: &str,
        is_new: impl Fn(&str) -> bool,
    ) -> Result<Option<Identity>> {
        let words = Self::check("inspect", Kind::Image, object)?;
        let read = self.read_identity(object).await;
        let read = read.map_err(|error| self.classified(error, Act::Look, words))?;
        Ok(match read {
            Some(Identity::Tag { reference, image, tagged_at, tags, .. }) => {
                let image_is_ours = is_new(&image);
                Some(Identity::Tag { reference, image, tagged_at, image_is_ours, tags })
            }
            other => other,
        })
    }

    async fn read_identity(&self, object: &str) -> std::result::Result<Option<Identity>, Error> {
        let inspect = || read::inspect(self.connection(), Kind::Image, object);
        let Some(seen) = inspect().await? else { return Ok(None) };
        let Some(Identity::Tag { image, tagged_at: None, .. }) = &seen.identity else {
            return Ok(seen.identity);
        };
        let Some((repository, tag)) = object.rsplit_once(':').filter(|_| !object.contains('@'))
        else {
            return Ok(seen.identity);
        };
        let options =
            TagImageOptions { repo: Some(repository.to_owned()), tag: Some(tag.to_owned()) };
        // By the reference, not by the id: one that was moved meanwhile stays where it is.
        self.connection().library().await?.tag_image(object, Some(options)).await?;
        let again = inspect().await?.and_then(|seen| seen.identity);
        let is_same =
            |now: &Identity| matches!(now, Identity::Tag { image: now, .. } if now == image);
        Ok(again.filter(is_same))
    }
}
