//! One sandbox as the server stores it, and as the API shows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::moment::Moment;
use crate::settings::ApiVersion;
use crate::state::{Desired, State};

/// Labels or an environment.
pub(crate) type Pairs = BTreeMap<String, String>;

/// One sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxRecord {
    /// Its id.
    pub(crate) id: Uuid,
    /// Its name, which changes when the sandbox is deleted.
    pub(crate) name: String,
    /// The sequence number among sandboxes created in the same millisecond.
    pub(crate) sequence: u64,
    /// The snapshot it was created from.
    pub(crate) snapshot: Option<String>,
    /// The build it was created from.
    pub(crate) build: Option<Value>,
    /// The user in it.
    pub(crate) user: String,
    /// Its environment.
    pub(crate) env: Arc<Pairs>,
    /// Its labels, shared by the sandboxes of one seed.
    pub(crate) labels: Arc<Pairs>,
    /// Whether its ports are public.
    pub(crate) public: bool,
    /// Whether it has no network.
    pub(crate) network_block_all: bool,
    /// The addresses and domains it may reach, if they are restricted.
    pub(crate) allowed: Allowed,
    /// The region.
    pub(crate) target: Arc<str>,
    /// Processors, graphics processors, memory and disk.
    pub(crate) size: SandboxSize,
    /// Its state.
    pub(crate) state: State,
    /// The desired state.
    pub(crate) desired: Desired,
    /// The state it enters when the runner takes up an accepted stop or delete.
    pub(crate) pending: Option<State>,
    /// Why it is in error.
    pub(crate) error_reason: Option<String>,
    /// Whether an error can be recovered from.
    pub(crate) recoverable: bool,
    /// The intervals, in minutes.
    pub(crate) intervals: Intervals,
    /// When it is destroyed, whatever its state.
    pub(crate) destroy_at: Option<Moment>,
    /// When it was created.
    pub(crate) created_at: Moment,
    /// When it last changed.
    pub(crate) updated_at: Moment,
    /// When it was last used.
    pub(crate) active_at: Moment,
    /// Counts state changes. A task that was started under an older number must not finish.
    pub(crate) generation: u64,
    /// Whether it has no backend.
    pub(crate) hollow: bool,
    /// The outdated state that the list shows instead.
    pub(crate) shadow: Option<Shadow>,
}

/// The resources of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SandboxSize {
    pub(crate) cpu: u32,
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
    pub(crate) disk: u32,
}

impl Default for SandboxSize {
    fn default() -> Self {
        Self { cpu: 1, gpu: 0, memory: 1, disk: 3 }
    }
}

/// The addresses and domains that a sandbox may reach, if they are restricted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed {
    pub(crate) addresses: Option<String>,
    pub(crate) domains: Option<String>,
}

/// Intervals in minutes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intervals {
    /// Stop when idle; 0 means never.
    pub(crate) stop: i64,
    /// Archive when stopped; 0 means the maximum.
    pub(crate) archive: i64,
    /// Delete when stopped; negative means never, 0 means at once.
    pub(crate) delete: i64,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { stop: 15, archive: 7 * 24 * 60, delete: -1 }
    }
}

/// An outdated state that the list shows for a deleted sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Shadow {
    /// The former name.
    pub(crate) name: String,
    /// The former state.
    pub(crate) state: State,
    /// The time until which the list omits it.
    pub(crate) hidden_until: Moment,
    /// The time until which the list shows its former state.
    pub(crate) shown_until: Moment,
}

impl SandboxRecord {
    /// Returns whether get and delete find it.
    pub(crate) fn is_visible(&self) -> bool {
        self.state != State::Destroyed && !self.is_errored_deleted()
    }

    /// Returns whether it was deleted in error, or its destruction failed. Then only one flag of
    /// the list shows it.
    pub(crate) fn is_errored_deleted(&self) -> bool {
        self.retention_minutes().is_some() && self.desired == Desired::Destroyed
    }

    /// Returns how many minutes the row is kept if the sandbox is deleted in this state.
    pub(crate) fn retention_minutes(&self) -> Option<u32> {
        match self.state {
            State::Error => Some(7 * 24 * 60),
            State::BuildFailed => Some(24 * 60),
            _ => None,
        }
    }

    /// Enters a state, and records the time.
    pub(crate) fn enter(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
        self.updated_at = Moment::now();
    }

    /// Returns its JSON form for get and the lifecycle operations.
    pub(crate) fn full<'a>(&'a self, origin: &'a ServerInfo) -> Full<'a> {
        let mut row = self.row(origin);
        row.network_block_all = Some(self.network_block_all);
        Full {
            row,
            env: &self.env,
            kvm: origin.api.has_newer_fields().then_some(false),
            network_allow_list: self.allowed.addresses.as_deref(),
            domain_allow_list: self.allowed.domains.as_deref(),
            build_info: self.build.as_ref(),
            volumes: [],
        }
    }

    /// Returns its JSON form for the list.
    pub(crate) fn row<'a>(&'a self, origin: &'a ServerInfo) -> SandboxRow<'a> {
        SandboxRow {
            id: self.id,
            runner_id: origin.runner,
            organization_id: &origin.organization,
            name: &self.name,
            snapshot: self.snapshot.as_deref(),
            user: &self.user,
            labels: &self.labels,
            public: self.public,
            network_block_all: origin.api.has_newer_fields().then_some(self.network_block_all),
            target: &self.target,
            cpu: self.size.cpu,
            gpu: self.size.gpu,
            memory: self.size.memory,
            disk: self.size.disk,
            state: self.state,
            desired_state: self.desired,
            error_reason: self.error_reason.as_deref(),
            recoverable: self.recoverable,
            backup_state: "None",
            auto_stop_interval: self.intervals.stop,
            auto_archive_interval: self.intervals.archive,
            auto_delete_interval: self.intervals.delete,
            auto_destroy_at: self.destroy_at,
            created_at: self.created_at,
            updated_at: self.updated_at,
            last_activity_at: self.active_at,
            sandbox_class: "container",
            daemon_version: Some(crate::VERSION),
            toolbox_proxy_url: &origin.toolbox_url,
        }
    }
}

/// The data that all sandboxes of a server share.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    pub(crate) organization: String,
    pub(crate) toolbox_url: String,
    /// The machine that all sandboxes are on.
    pub(crate) runner: Uuid,
    /// The API version whose responses are imitated.
    pub(crate) api: ApiVersion,
}

/// A sandbox in the list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxRow<'a> {
    id: Uuid,
    runner_id: Uuid,
    organization_id: &'a str,
    pub(crate) name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'a str>,
    user: &'a str,
    labels: &'a Pairs,
    public: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_block_all: Option<bool>,
    target: &'a str,
    cpu: u32,
    gpu: u32,
    memory: u32,
    disk: u32,
    pub(crate) state: State,
    pub(crate) desired_state: Desired,
    error_reason: Option<&'a str>,
    recoverable: bool,
    backup_state: &'a str,
    auto_stop_interval: i64,
    auto_archive_interval: i64,
    auto_delete_interval: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_destroy_at: Option<Moment>,
    created_at: Moment,
    updated_at: Moment,
    last_activity_at: Moment,
    sandbox_class: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_version: Option<&'a str>,
    toolbox_proxy_url: &'a str,
}

/// A sandbox in full.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Full<'a> {
    #[serde(flatten)]
    row: SandboxRow<'a>,
    env: &'a Pairs,
    #[serde(skip_serializing_if = "Option::is_none")]
    kvm: Option<bool>,
    network_allow_list: Option<&'a str>,
    domain_allow_list: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_info: Option<&'a Value>,
    volumes: [(); 0],
}

impl Full<'_> {
    /// Omits fields that are known only after the daemon in the sandbox has answered.
    pub(crate) fn before_its_daemon(mut self) -> Self {
        self.row.daemon_version = None;
        self
    }
}
