//! `POST /sandbox`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::error::{ApiError, Result};
use crate::fault::InjectedFaults;
use crate::moment::Moment;
use crate::sandbox::{Allowed, Intervals, Pairs, SandboxRecord, SandboxSize};
use crate::settings::{DEFAULT_REGION, DEFAULT_SNAPSHOT, SandboxHost};
use crate::shared::ServerState;
use crate::state::{Desired, State};

/// The body of a create. Everything is optional, and unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CreateBody {
    name: Option<String>,
    snapshot: Option<String>,
    build_info: Option<Value>,
    user: Option<String>,
    env: Option<Pairs>,
    labels: Option<Pairs>,
    public: Option<bool>,
    target: Option<String>,
    cpu: Option<u32>,
    gpu: Option<u32>,
    memory: Option<u32>,
    disk: Option<u32>,
    auto_stop_interval: Option<i64>,
    auto_archive_interval: Option<i64>,
    auto_delete_interval: Option<i64>,
    ttl_minutes: Option<i64>,
    network_block_all: Option<bool>,
    network_allow_list: Option<String>,
    domain_allow_list: Option<String>,
}

/// Creates a sandbox, and waits a while for its start.
pub(super) async fn create(
    Extract(shared): Extract<Arc<ServerState>>,
    faults: Option<Extension<InjectedFaults>>,
    body: Bytes,
) -> Result<Response> {
    let faults = faults.map(|Extension(faults)| faults).unwrap_or_default();
    let request: CreateBody = if body.is_empty() {
        CreateBody::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| ApiError::unparsed(error.to_string()))?
    };
    request.check()?;
    request.check_names(&shared)?;
    let built = request.build_info.is_some();
    let sandbox = request.into_sandbox(&shared);
    // Every other answer is rendered before the start, as the service does now and then.
    let written_early = sandbox.sequence.is_multiple_of(2);
    let accepted = shared.create(sandbox, &faults)?;
    let early = written(&shared, &accepted.id)?;
    if !built && let Some(finished) = accepted.finished {
        // If it takes longer, or the client leaves, the sandbox continues without this request.
        let _ = tokio::time::timeout(shared.delays.answer, finished).await;
    }
    if let Some(reason) = failure(&shared, &accepted.id) {
        return Err(ApiError::invalid(format!("Sandbox failed to start: {reason}")));
    }
    if written_early { Ok(early) } else { written(&shared, &accepted.id) }
}

/// Answers a create with the current state of the sandbox.
fn written(shared: &ServerState, id: &Uuid) -> Result<Response> {
    let registry = shared.registry();
    let sandbox = registry.get(id).ok_or_else(|| ApiError::no_sandbox(&id.to_string()))?;
    super::json(StatusCode::OK, &sandbox.full(&shared.origin).before_its_daemon())
}

/// Returns why a sandbox is in error.
fn failure(shared: &ServerState, id: &Uuid) -> Option<String> {
    let registry = shared.registry();
    let sandbox = registry.get(id).filter(|sandbox| sandbox.state == State::Error)?;
    Some(sandbox.error_reason.clone().unwrap_or_default())
}

/// Adds the service's own fields to the requested build.
fn dated(mut build: Value, now: Moment) -> Value {
    if let Some(fields) = build.as_object_mut() {
        for field in ["createdAt", "updatedAt"] {
            fields.insert(field.to_owned(), now.to_string().into());
        }
        let reference = format!("daytona-{}:daytona", Uuid::new_v4().simple());
        fields.insert("snapshotRef".to_owned(), reference.into());
    }
    build
}

impl CreateBody {
    fn check(&self) -> Result<()> {
        let sized = [self.cpu, self.gpu, self.memory, self.disk];
        if self.build_info.is_none() && sized.iter().flatten().any(|size| *size > 0) {
            let message = "Cannot specify Sandbox resources when using a snapshot";
            return Err(ApiError::invalid(message));
        }
        if self.build_info.is_some() && self.snapshot.is_some() {
            let message = "Cannot specify a snapshot when using a build info entry";
            return Err(ApiError::invalid(message));
        }
        if self.auto_stop_interval.is_some_and(|minutes| minutes < 0) {
            return Err(ApiError::invalid("Auto-stop interval must be non-negative"));
        }
        if self.auto_archive_interval.is_some_and(|minutes| minutes < 0) {
            return Err(ApiError::invalid("Auto-archive interval must be non-negative"));
        }
        if self.ttl_minutes.is_some_and(|minutes| minutes < 0) {
            return Err(ApiError::invalid("ttlMinutes must be non-negative"));
        }
        if self.name.as_ref().is_some_and(|name| name.is_empty() || name.len() > 255) {
            return Err(ApiError::invalid("name must be between 1 and 255 characters"));
        }
        Ok(())
    }

    /// Refuses snapshots and regions that do not exist.
    fn check_names(&self, shared: &ServerState) -> Result<()> {
        // If a snapshot is the name of an image, the engine decides whether it exists.
        let any_snapshot = matches!(shared.backend, SandboxHost::Docker { image: None, .. });
        if let Some(snapshot) = &self.snapshot
            && !any_snapshot
            && !shared.known.snapshots.contains(snapshot)
        {
            let message = format!(
                "Snapshot {snapshot} not found. Did you add it through the Daytona Dashboard?"
            );
            return Err(ApiError::invalid(message));
        }
        let known = |region: &String| shared.known.regions.contains(region);
        if self.target.as_ref().is_some_and(|region| !known(region)) {
            return Err(ApiError::new(StatusCode::NOT_FOUND, "Region not found"));
        }
        Ok(())
    }

    fn into_sandbox(self, shared: &ServerState) -> SandboxRecord {
        let (id, now) = (Uuid::new_v4(), Moment::now());
        let (usual, size) = (Intervals::default(), SandboxSize::default());
        let built = self.build_info.is_some();
        // A service without times to live ignores the field, like every unknown field.
        let lifetime = self.ttl_minutes.filter(|_| shared.origin.api.has_time_to_live());
        SandboxRecord {
            id,
            name: self.name.unwrap_or_else(|| id.to_string()),
            sequence: shared.registry().next_sequence(),
            snapshot: match built {
                true => None,
                false => Some(self.snapshot.unwrap_or_else(|| DEFAULT_SNAPSHOT.to_owned())),
            },
            build: self.build_info.map(|build| dated(build, now)),
            user: self.user.unwrap_or_else(|| "daytona".to_owned()),
            env: Arc::new(self.env.unwrap_or_default()),
            labels: Arc::new(self.labels.unwrap_or_default()),
            public: self.public.unwrap_or_default(),
            network_block_all: self.network_block_all.unwrap_or_default(),
            allowed: Allowed {
                addresses: self.network_allow_list,
                domains: self.domain_allow_list,
            },
            target: self.target.unwrap_or_else(|| DEFAULT_REGION.to_owned()).into(),
            size: SandboxSize {
                cpu: self.cpu.unwrap_or(size.cpu),
                gpu: self.gpu.unwrap_or(size.gpu),
                memory: self.memory.unwrap_or(size.memory),
                disk: self.disk.unwrap_or(size.disk),
            },
            state: if built { State::PendingBuild } else { State::Creating },
            desired: Desired::Started,
            pending: None,
            error_reason: None,
            recoverable: false,
            intervals: Intervals {
                stop: self.auto_stop_interval.unwrap_or(usual.stop),
                archive: self.auto_archive_interval.unwrap_or(usual.archive),
                delete: self.auto_delete_interval.unwrap_or(usual.delete),
            },
            destroy_at: super::act::end_of_life(shared, now, lifetime.unwrap_or(0)),
            created_at: now,
            updated_at: now,
            active_at: now,
            generation: 0,
            hollow: matches!(shared.backend, SandboxHost::Hollow),
            shadow: None,
        }
    }
}
