//! Pulls: an image that the engine does not have is fetched from its registry, as `docker run`
//! does.
//!
//! What a pull brought stays, for the next one who needs it. An engine ends a pull when whoever
//! asked for it hangs up, and goes on with the layers it has when it is asked again.

use std::time::Duration;

use bollard::errors::Error;
use serde::Deserialize;
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
        let reference = familiar(image);
        let query = [("fromImage", reference.as_str())];
        let each = |line: &[u8]| {
            let Ok(told) = serde_json::from_slice::<Progress>(line) else { return Ok(()) };
            match told.error {
                None => {
                    debug!(image, status = told.status, "pulling");
                    Ok(())
                }
                // In the middle of the answer it is what it would have been at its beginning.
                Some(message) => {
                    Err(Error::DockerResponseServerError { status_code: 500, message })
                }
            }
        };
        self.connection().post_for_lines("/images/create", &query, SILENCE, each).await
    }
}

/// One line of what an engine says while it pulls.
#[derive(Debug, Deserialize)]
struct Progress {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    error: Option<String>,
}
