//! The engine's objects as it sends them, reduced to what we use.
//!
//! Only an object's identity is required. Everything else may be absent or
//! null: engines and Podman differ, and one odd row must not hide the rest.

use std::collections::BTreeMap;

use creel_model::labels::Labels;
use serde::{Deserialize, Deserializer};

use super::bounds::{Weigh, texts_of, weight_of};

/// Reads an absent or null field as its default.
pub(super) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerRow {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub names: Vec<String>,
    #[serde(default, deserialize_with = "lenient", rename = "ImageID")]
    pub image_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub created: i64,
    #[serde(default, deserialize_with = "lenient")]
    pub state: String,
    #[serde(default, deserialize_with = "lenient")]
    pub labels: Labels,
    #[serde(default, deserialize_with = "lenient")]
    pub mounts: Vec<Mount>,
    #[serde(default, deserialize_with = "lenient")]
    pub network_settings: NetworkSettings,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerDetails {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// The id of the image.
    #[serde(default, deserialize_with = "lenient")]
    pub image: String,
    #[serde(default, deserialize_with = "lenient")]
    pub created: String,
    #[serde(default, deserialize_with = "lenient")]
    pub state: ContainerState,
    #[serde(default, deserialize_with = "lenient")]
    pub config: ContainerConfig,
    #[serde(default, deserialize_with = "lenient")]
    pub mounts: Vec<Mount>,
    #[serde(default, deserialize_with = "lenient")]
    pub network_settings: NetworkSettings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerState {
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    #[serde(default, deserialize_with = "lenient")]
    pub started_at: String,
    #[serde(default, deserialize_with = "lenient")]
    pub finished_at: String,
}

/// The configuration of a container or an image.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerConfig {
    #[serde(default, deserialize_with = "lenient")]
    pub labels: Labels,
    #[serde(default, deserialize_with = "lenient")]
    pub user: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Mount {
    #[serde(default, deserialize_with = "lenient", rename = "Type")]
    pub sort: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkSettings {
    #[serde(default, deserialize_with = "lenient")]
    pub networks: BTreeMap<String, JoinedNetwork>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct JoinedNetwork {
    #[serde(default, deserialize_with = "lenient", rename = "NetworkID")]
    pub network_id: String,
}

/// A network. Only an inspection includes its containers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Network {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub created: String,
    #[serde(default, deserialize_with = "lenient")]
    pub labels: Labels,
    #[serde(default, deserialize_with = "lenient")]
    pub containers: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Volume {
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub created_at: String,
    #[serde(default, deserialize_with = "lenient")]
    pub labels: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ImageRow {
    pub id: String,
    /// The parent image, set by the classic builder.
    #[serde(default, deserialize_with = "lenient")]
    pub parent_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub repo_digests: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub created: i64,
    #[serde(default, deserialize_with = "lenient")]
    pub size: i64,
    #[serde(default, deserialize_with = "lenient")]
    pub labels: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ImageDetails {
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub repo_digests: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub created: String,
    #[serde(default, deserialize_with = "lenient")]
    pub size: i64,
    #[serde(default, deserialize_with = "lenient")]
    pub config: ContainerConfig,
    /// The parent image, set by the classic builder.
    #[serde(default, deserialize_with = "lenient")]
    pub parent: String,
    /// The container from which the image was made.
    #[serde(default, deserialize_with = "lenient")]
    pub container: String,
    #[serde(default, deserialize_with = "lenient")]
    pub metadata: ImageMetadata,
}

/// What the engine keeps about an image besides its content.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ImageMetadata {
    /// When a tag was last put on the image. The year 1 means never, as after a load or a pull.
    #[serde(default, deserialize_with = "lenient")]
    pub last_tag_time: String,
}

impl Weigh for ContainerRow {
    fn weight(&self) -> usize {
        let mounts = self.mounts.iter().flat_map(|mount| [mount.sort.as_str(), &mount.name]);
        let networks = self.network_settings.networks.iter();
        let networks =
            networks.flat_map(|(name, joined)| [name.as_str(), joined.network_id.as_str()]);
        let own = [self.id.as_str(), &self.image_id, &self.state];
        let names = self.names.iter().map(String::as_str);
        weight_of(
            own.into_iter()
                .chain(names)
                .chain(mounts)
                .chain(networks)
                .chain(texts_of(&self.labels)),
        )
    }
}

impl Weigh for Network {
    fn weight(&self) -> usize {
        let own = [self.id.as_str(), &self.name, &self.created];
        let containers = self.containers.keys().map(String::as_str);
        weight_of(own.into_iter().chain(containers).chain(texts_of(&self.labels)))
    }
}

impl Weigh for Volume {
    fn weight(&self) -> usize {
        weight_of([self.name.as_str(), &self.created_at].into_iter().chain(texts_of(&self.labels)))
    }
}

impl Weigh for ImageRow {
    fn weight(&self) -> usize {
        let references = self.repo_tags.iter().chain(&self.repo_digests).map(String::as_str);
        weight_of(references.chain([self.id.as_str()]).chain(texts_of(&self.labels)))
    }
}

/// The response to a create.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreatedId {
    pub id: String,
}

/// What an engine reports about its machine.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct EngineInfo {
    #[serde(default, deserialize_with = "lenient", rename = "ID")]
    pub id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub docker_root_dir: String,
}

/// The resource usage of a container.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Stats {
    #[serde(default, deserialize_with = "lenient")]
    pub memory_stats: MemoryStats,
    #[serde(default, deserialize_with = "lenient")]
    pub cpu_stats: ProcessorStats,
    #[serde(default, deserialize_with = "lenient")]
    pub pids_stats: ProcessStats,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct MemoryStats {
    pub usage: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    pub stats: MemoryDetails,
}

/// The part of a container's memory that the kernel reclaims first. The two versions of control
/// groups name it differently.
#[derive(Debug, Default, Deserialize)]
pub(super) struct MemoryDetails {
    pub inactive_file: Option<u64>,
    pub total_inactive_file: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ProcessorStats {
    #[serde(default, deserialize_with = "lenient")]
    pub cpu_usage: ProcessorUsage,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ProcessorUsage {
    /// In nanoseconds.
    pub total_usage: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ProcessStats {
    pub current: Option<u64>,
}
