//! Pulls: an image that the engine does not have is fetched from its registry, as `docker run`
//! does.
//!
//! What a pull brought stays, for the next one who needs it. An engine ends a pull when whoever
//! asked for it hangs up, and goes on with the layers it has when it is asked again.

use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::CreateImageOptions;
use futures::StreamExt;
use tokio::time::timeout;
use tracing::debug;

use crate::provider::{Kind, Result};

use super::classify::Act;
use super::provider::DockerProvider;
use super::reference::familiar;

/// How long a registry may send nothing.
const SILENCE: Duration = Duration::from_secs(120);

impl DockerProvider {
    /// Fetches an image.
    pub(crate) async fn pull(&self, image: &str) -> Result<()> {
        let words = Self::check("pull", Kind::Image, image)?;
        let pulled = self.follow_pull(image).await;
        pulled.map_err(|error| self.classified(error, Act::Make, words))
    }

    async fn follow_pull(&self, image: &str) -> std::result::Result<(), Error> {
        // Without a tag the engine would fetch all of them.
        let from_image = Some(familiar(image));
        let options = CreateImageOptions { from_image, ..CreateImageOptions::default() };
        let library = self.connection().library().await?;
        let mut told = library.create_image(Some(options), None, None);
        loop {
            match timeout(SILENCE, told.next()).await {
                Ok(Some(Ok(told))) => debug!(image, status = told.status, "pulling"),
                Ok(Some(Err(error))) => return Err(as_answer(error)),
                Ok(None) => return Ok(()),
                Err(_) => return Err(Error::RequestTimeoutError),
            }
        }
    }
}

/// Takes an error in the middle of the answer for what it would have been at its beginning.
fn as_answer(error: Error) -> Error {
    match error {
        Error::DockerStreamError { error } => {
            Error::DockerResponseServerError { status_code: 500, message: error }
        }
        other => other,
    }
}
