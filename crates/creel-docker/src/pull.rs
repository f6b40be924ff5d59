//! Pulls: fetches an image that the engine does not have from its registry, as `docker run` does.
//!
//! A pulled image stays for later use. An engine cancels a pull when the client that requested it
//! disconnects. When it is requested again, the engine continues with the layers it has.

use std::time::Duration;

use bollard::errors::Error;
use creel_model::provider::{Kind, Result};
use serde::Deserialize;
use tracing::debug;

use super::classify::EngineAction;
use super::provider::DockerProvider;
use super::reference::familiar;

/// How long a registry may send nothing.
const SILENCE: Duration = Duration::from_secs(120);

impl DockerProvider {
    /// Fetches an image.
    pub async fn pull(&self, image: &str) -> Result<()> {
        let operation = Self::check("pull", Kind::Image, image)?;
        let pulled = self.follow_pull(image).await;
        pulled.map_err(|error| self.classified(error, EngineAction::Make, operation))
    }

    async fn follow_pull(&self, image: &str) -> std::result::Result<(), Error> {
        // Without a tag the engine would fetch all of them.
        let reference = familiar(image);
        let query = [("fromImage", reference.as_str())];
        let each = |line: &[u8]| {
            let Ok(progress) = serde_json::from_slice::<PullProgress>(line) else { return Ok(()) };
            match progress.error {
                None => {
                    debug!(image, status = progress.status, "pulling");
                    Ok(())
                }
                // An error in the middle of the response is handled like one at its beginning.
                Some(message) => {
                    Err(Error::DockerResponseServerError { status_code: 500, message })
                }
            }
        };
        self.connection().post_for_lines("/images/create", &query, SILENCE, each).await
    }
}

/// One line of the engine's output during a pull.
#[derive(Debug, Deserialize)]
struct PullProgress {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    error: Option<String>,
}
