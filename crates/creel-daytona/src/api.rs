//! The requests to Daytona, independent of the API version.
//!
//! The provider uses only this trait, so another version of the API is one more implementation and
//! nothing else. Every error is classified.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use creel_model::labels::Labels;
use serde::Serialize;

use super::classify::DaytonaError;
use super::model::{DaytonaSandbox, KeyRights};

/// The result of one request.
pub type DaytonaResult<T> = Result<T, DaytonaError>;

/// Which sandboxes a listing shows.
///
/// Rows come in order of creation, so that none moves from one page to another during the listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Their id starts with this.
    pub id: Option<String>,
    /// Their name starts with this, ignoring case.
    pub name: Option<String>,
    /// With all of these labels.
    pub labels: Labels,
    /// In one of these states.
    pub states: Vec<String>,
    /// Include those whose destroy failed, which no other call shows.
    pub errored_deleted: bool,
}

/// One page of a listing.
#[derive(Debug, Clone, Default)]
pub struct SandboxPage {
    /// The sandboxes on it.
    pub items: Vec<DaytonaSandbox>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
    /// Its size in bytes.
    pub size: usize,
}

/// The body of a create.
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
    /// Idle minutes until it stops.
    pub auto_stop_interval: u64,
    /// Minutes at rest until it is deleted.
    pub auto_delete_interval: u64,
    /// Minutes until it is destroyed, whatever its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_minutes: Option<u64>,
}

/// An image, in the form that Daytona accepts.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// The Dockerfile.
    pub dockerfile_content: String,
}

/// How a sandbox is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// It is stopped gracefully.
    Polite,
    /// It is killed.
    Forced,
}

/// One version of Daytona's API.
#[async_trait]
pub trait DaytonaApi: Send + Sync + fmt::Debug {
    /// Returns the address of the API, for messages.
    fn address(&self) -> String;

    /// Returns one page of a listing.
    async fn list(&self, query: &ListQuery, cursor: Option<&str>) -> DaytonaResult<SandboxPage>;

    /// Returns one sandbox by its id or name.
    async fn get(&self, id: &str) -> DaytonaResult<DaytonaSandbox>;

    /// Creates a sandbox. A response with an id succeeds, whatever else it holds.
    async fn create(&self, new: &NewSandbox) -> DaytonaResult<DaytonaSandbox>;

    /// Starts a sandbox.
    async fn start(&self, id: &str) -> DaytonaResult<()>;

    /// Stops a sandbox.
    async fn stop(&self, id: &str, mode: StopMode) -> DaytonaResult<()>;

    /// Recovers a failed sandbox.
    async fn recover(&self, id: &str) -> DaytonaResult<()>;

    /// Requests the delete of a sandbox.
    async fn delete(&self, id: &str) -> DaytonaResult<()>;

    /// Moves a stopped sandbox to cheap storage.
    async fn archive(&self, id: &str) -> DaytonaResult<()>;

    /// Replaces all labels of a sandbox.
    async fn set_labels(&self, id: &str, labels: &Labels) -> DaytonaResult<()>;

    /// Sets the idle minutes until it stops; 0 means never.
    async fn set_auto_stop(&self, id: &str, minutes: u64) -> DaytonaResult<()>;

    /// Sets the minutes at rest until it is archived.
    async fn set_auto_archive(&self, id: &str, minutes: u64) -> DaytonaResult<()>;

    /// Sets the minutes at rest until it is deleted; negative means never.
    async fn set_auto_delete(&self, id: &str, minutes: i64) -> DaytonaResult<()>;

    /// Sets the minutes from now until it is destroyed, whatever its state.
    async fn set_time_to_live(&self, id: &str, minutes: u64) -> DaytonaResult<()>;

    /// Reports activity, so that the sandbox does not stop by itself.
    async fn touch(&self, id: &str) -> DaytonaResult<()>;

    /// Returns the permissions of our key.
    async fn key_rights(&self) -> DaytonaResult<KeyRights>;

    /// Returns the toolbox address of new sandboxes, where the service publishes it.
    async fn toolbox_url(&self) -> DaytonaResult<Option<String>>;
}
