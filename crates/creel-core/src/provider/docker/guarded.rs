//! What a guard asks of the engine behind it.

use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::labels::Labels;
use crate::provider::{ProviderError, Result};

use super::address::Address;
use super::bounds::{Weigh, weight_of};
use super::classify::Act;
use super::model::{ImageRow, lenient};
use super::observe;
use super::provider::DockerProvider;
use super::transport::RawStream;

/// Where engines listen unless told otherwise; clients hard-code both.
const USUAL_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/docker.sock"];

/// An image and the references that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageNames {
    pub(crate) id: String,
    /// The image it was built upon by the classic builder; else empty.
    pub(crate) parent: String,
    pub(crate) references: Vec<String>,
}

impl DockerProvider {
    /// Opens a connection of its own to the engine.
    pub(crate) async fn open_raw(&self) -> io::Result<Box<dyn RawStream>> {
        self.connection().open_raw().await
    }

    /// Returns the socket of the engine, where it has one.
    pub fn socket(&self) -> Option<&Path> {
        match self.connection().address() {
            Address::Unix(path) => Some(path),
            Address::Tcp { .. } | Address::Tls { .. } | Address::Ssh(_) => None,
        }
    }

    /// Returns the paths under which clients may ask for the engine's socket in a container.
    pub(crate) fn socket_paths(&self) -> Vec<String> {
        let own = self.socket().map(|path| path.to_string_lossy().into_owned());
        let usual = USUAL_SOCKETS.map(str::to_owned);
        own.into_iter().chain(usual).collect()
    }

    /// Returns all images with all their references, the steps of builds included.
    pub(crate) async fn image_names(&self) -> Result<Vec<ImageNames>> {
        let mut names = Vec::new();
        let each = |row: ImageRow| {
            let mut references = observe::real_references(&row.repo_tags);
            references.extend(observe::real_references(&row.repo_digests));
            let parent = observe::image_id(&row.parent_id);
            names.push(ImageNames { id: observe::image_id(&row.id), parent, references });
        };
        let listed = self.connection().rows("/images/json", &[("all", "1")], each).await;
        listed.map_err(|error| self.classified(error, Act::Ask, "list images"))?;
        Ok(names)
    }

    /// Returns the ids of the containers that carry a label, in whatever state.
    pub(crate) async fn containers_labelled(&self, label: &str) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Row {
            id: String,
        }
        impl Weigh for Row {
            fn weight(&self) -> usize {
                weight_of([self.id.as_str()])
            }
        }
        let filters = serde_json::json!({ "label": [label] }).to_string();
        let mut ids = Vec::new();
        let query = [("all", "1"), ("filters", filters.as_str())];
        let each = |row: Row| ids.push(row.id);
        let listed = self.connection().rows("/containers/json", &query, each).await;
        listed.map_err(|error| self.classified(error, Act::Ask, "list containers"))?;
        Ok(ids)
    }

    /// Makes a volume, or finds one of that name; returns the labels it has.
    pub(crate) async fn make_volume(
        &self,
        name: &str,
        driver: Option<&str>,
        labels: &Labels,
    ) -> std::result::Result<Labels, ProviderError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Made {
            #[serde(default, deserialize_with = "lenient")]
            labels: Labels,
        }
        let order = serde_json::json!({
            "Name": name, "Driver": driver.unwrap_or_default(), "Labels": labels,
        });
        let made: std::result::Result<Made, _> =
            self.connection().post("/volumes/create", &order).await;
        let words = format!("create volume {name}");
        made.map(|made| made.labels).map_err(|error| self.classified(error, Act::Make, words))
    }
}
