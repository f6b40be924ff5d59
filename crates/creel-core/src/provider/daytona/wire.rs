//! The wire: what is asked of Daytona, whatever version of its API answers.
//!
//! The provider speaks only to this trait, so that another version of the API
//! is one more implementation and nothing else. Every error comes classified.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use serde::Serialize;

use crate::labels::Labels;

use super::classify::Refusal;
use super::model::{KeyRights, Sandbox};

/// The result of one request.
pub type Answered<T> = Result<T, Refusal>;

/// Which sandboxes a listing shows. Rows come in the order of their creation, so that none
/// moves from one page to another while it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Whose id starts so.
    pub id: Option<String>,
    /// Whose name starts so, in any case.
    pub name: Option<String>,
    /// With all of these labels.
    pub labels: Labels,
    /// In one of these states.
    pub states: Vec<String>,
    /// Those too whose destroy failed, which nothing else shows.
    pub errored_deleted: bool,
}

/// One page of a listing.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The sandboxes on it.
    pub items: Vec<Sandbox>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
    /// How many bytes it took.
    pub size: usize,
}

/// What a sandbox is made from.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// The snapshot to start from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The image to build from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_info: Option<BuildInfo>,
    /// The user in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Processors; only with an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Memory in GiB; only with an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Disk in GiB; only with an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// After how many idle minutes it stops.
    pub auto_stop_interval: u64,
    /// After how many minutes at rest it is deleted.
    pub auto_delete_interval: u64,
    /// After how many minutes it is destroyed, whatever its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_minutes: Option<u64>,
}

/// An image as Daytona takes it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// The Dockerfile.
    pub dockerfile_content: String,
}

/// How a sandbox is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// It is asked to.
    Polite,
    /// It is killed.
    Forced,
}

/// One version of Daytona's API.
#[async_trait]
pub trait Wire: Send + Sync + fmt::Debug {
    /// Returns the address people know it by.
    fn address(&self) -> String;

    /// Returns one page of a listing.
    async fn list(&self, query: &ListQuery, cursor: Option<&str>) -> Answered<Page>;

    /// Returns one sandbox by its id or name.
    async fn get(&self, id: &str) -> Answered<Sandbox>;

    /// Makes a sandbox; its id comes first, whatever else the answer holds.
    async fn create(&self, new: &NewSandbox) -> Answered<Sandbox>;

    /// Starts a sandbox.
    async fn start(&self, id: &str) -> Answered<()>;

    /// Stops a sandbox.
    async fn stop(&self, id: &str, mode: StopMode) -> Answered<()>;

    /// Brings back a sandbox that failed.
    async fn recover(&self, id: &str) -> Answered<()>;

    /// Orders the end of a sandbox.
    async fn delete(&self, id: &str) -> Answered<()>;

    /// Moves a stopped sandbox to cheap storage.
    async fn archive(&self, id: &str) -> Answered<()>;

    /// Replaces all labels of a sandbox.
    async fn set_labels(&self, id: &str, labels: &Labels) -> Answered<()>;

    /// Sets after how many idle minutes it stops; 0 means never.
    async fn set_auto_stop(&self, id: &str, minutes: u64) -> Answered<()>;

    /// Sets after how many minutes at rest it is archived.
    async fn set_auto_archive(&self, id: &str, minutes: u64) -> Answered<()>;

    /// Sets after how many minutes at rest it is deleted; negative means never.
    async fn set_auto_delete(&self, id: &str, minutes: i64) -> Answered<()>;

    /// Sets in how many minutes from now it is destroyed, whatever its state.
    async fn set_time_to_live(&self, id: &str, minutes: u64) -> Answered<()>;

    /// Counts as activity, so that the sandbox does not stop by itself.
    async fn touch(&self, id: &str) -> Answered<()>;

    /// Returns what our key may do.
    async fn key_rights(&self) -> Answered<KeyRights>;

    /// Returns where the toolboxes of new sandboxes answer, where the service publishes that.
    async fn toolbox_url(&self) -> Answered<Option<String>>;
}
