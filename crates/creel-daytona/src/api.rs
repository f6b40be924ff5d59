//! The values in requests to Daytona and in its responses.

use std::collections::BTreeMap;

use creel_model::labels::Labels;
use serde::Serialize;

use super::classify::DaytonaError;
use super::model::DaytonaSandbox;

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
