//! What a guard needs from the engine behind it.

use std::io;
use std::path::Path;

use creel_model::labels::Labels;
use creel_model::provider::{ProviderError, Result};
use serde::Deserialize;

use super::address::Address;
use super::bounds::{Weigh, weight_of};
use super::classify::EngineAction;
use super::model::{ImageRow, lenient};
use super::observe;
use super::provider::DockerProvider;
use super::transport::RawStream;

/// The default sockets of engines. Clients hard-code both.
const USUAL_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/docker.sock"];

/// An image and its references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageNames {
    /// Its id.
    pub id: String,
    /// The parent image, set by the classic builder. Otherwise empty.
    pub parent: String,
    /// Its references.
    pub references: Vec<String>,
}

impl DockerProvider {
    /// Opens a separate connection to the engine.
    pub async fn open_raw(&self) -> io::Result<Box<dyn RawStream>> {
        self.connection().open_raw().await
    }

    /// Returns the socket of the engine, if it has one.
    pub fn socket(&self) -> Option<&Path> {
        match self.connection().address() {
            Address::Unix(path) => Some(path),
            Address::Tcp { .. } | Address::Tls { .. } | Address::Ssh(_) => None,
        }
    }

    /// Returns the paths by which clients may mount the engine's socket into a container.
    pub fn socket_paths(&self) -> Vec<String> {
        let own = self.socket().map(|path| path.to_string_lossy().into_owned());
        let usual = USUAL_SOCKETS.map(str::to_owned);
        own.into_iter().chain(usual).collect()
    }

    /// Returns all images with all their references, including the steps of builds.
    pub async fn image_names(&self) -> Result<Vec<ImageNames>> {
        let mut names = Vec::new();
        let each = |row: ImageRow| {
            let mut references = observe::real_references(&row.repo_tags);
            references.extend(observe::real_references(&row.repo_digests));
            let parent = observe::image_id(&row.parent_id);
            names.push(ImageNames { id: observe::image_id(&row.id), parent, references });
        };
        let listed = self.connection().rows("/images/json", &[("all", "1")], each).await;
        listed.map_err(|error| self.classified(error, EngineAction::Query, "list images"))?;
        Ok(names)
    }

    /// Returns the ids of the containers that carry a label, in any state.
    pub async fn containers_labelled(&self, label: &str) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct LabelledRow {
            id: String,
        }
        impl Weigh for LabelledRow {
            fn weight(&self) -> usize {
                weight_of([self.id.as_str()])
            }
        }
        let filters = serde_json::json!({ "label": [label] }).to_string();
        let mut ids = Vec::new();
        let query = [("all", "1"), ("filters", filters.as_str())];
        let each = |row: LabelledRow| ids.push(row.id);
        let listed = self.connection().rows("/containers/json", &query, each).await;
        listed.map_err(|error| self.classified(error, EngineAction::Query, "list containers"))?;
        Ok(ids)
    }

    /// Creates a volume, or finds one with that name. Returns its labels.
    pub async fn make_volume(
        &self,
        name: &str,
        driver: Option<&str>,
        labels: &Labels,
    ) -> std::result::Result<Labels, ProviderError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct CreatedVolume {
            #[serde(default, deserialize_with = "lenient")]
            labels: Labels,
        }
        let body = serde_json::json!({
            "Name": name, "Driver": driver.unwrap_or_default(), "Labels": labels,
        });
        let created: std::result::Result<CreatedVolume, _> =
            self.connection().post("/volumes/create", &body).await;
        let operation = format!("create volume {name}");
        created
            .map(|created| created.labels)
            .map_err(|error| self.classified(error, EngineAction::Make, operation))
    }
}
