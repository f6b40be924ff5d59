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
use crate::fault::Mischief;
use crate::moment::Moment;
use crate::sandbox::{Allowed, Intervals, Pairs, Sandbox, Size};
use crate::settings::{Backend, DEFAULT_REGION, DEFAULT_SNAPSHOT};
use crate::shared::Shared;
use crate::state::{Desired, State};

/// What a create may say; everything is optional, unknown fields are let through.
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

/// Creates a sandbox and waits a while for its start.
pub(super) async fn create(
    Extract(shared): Extract<Arc<Shared>>,
    mischief: Option<Extension<Mischief>>,
    body: Bytes,
) -> Result<Response> {
    let mischief = mischief.map(|Extension(mischief)| mischief).unwrap_or_default();
    let ordered: CreateBody = if body.is_empty() {
        CreateBody::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| ApiError::unparsed(error.to_string()))?
    };
    ordered.check()?;
    ordered.check_names(&shared)?;
    let built = ordered.build_info.is_some();
    let sandbox = ordered.into_sandbox(&shared);
    // Every other answer was written before the start, as the service's now and then is.
    let written_early = sandbox.sequence.is_multiple_of(2);
    let accepted = shared.create(sandbox, &mischief)?;
    let early = written(&shared, &accepted.id)?;
    if !built && let Some(settled) = accepted.settled {
        // The sandbox goes on without us when it takes longer, or when the client leaves.
        let _ = tokio::time::timeout(shared.delays.answer, settled).await;
    }
    if let Some(reason) = failure(&shared, &accepted.id) {
        return Err(ApiError::invalid(format!("Sandbox failed to start: {reason}")));
    }
    if written_early { Ok(early) } else { written(&shared, &accepted.id) }
}

/// Answers a create with the sandbox as it is now.
fn written(shared: &Shared, id: &Uuid) -> Result<Response> {
    let registry = shared.registry();
    let sandbox = registry.get(id).ok_or_else(|| ApiError::no_sandbox(&id.to_string()))?;
    super::json(StatusCode::OK, &sandbox.full(&shared.origin).before_its_daemon())
}

/// Returns why a sandbox is in error.
fn failure(shared: &Shared, id: &Uuid) -> Option<String> {
    let registry = shared.registry();
    let sandbox = registry.get(id).filter(|sandbox| sandbox.state == State::Error)?;
    Some(sandbox.error_reason.clone().unwrap_or_default())
}

/// Adds what the service says about a build to what was ordered.
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
    fn check_names(&self, shared: &Shared) -> Result<()> {
        // Where a snapshot is the name of an image, the engine knows which there are.
        let any_snapshot = matches!(shared.backend, Backend::Docker { image: None, .. });
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

    fn into_sandbox(self, shared: &Shared) -> Sandbox {
        let (id, now) = (Uuid::new_v4(), Moment::now());
        let (usual, size) = (Intervals::default(), Size::default());
        let built = self.build_info.is_some();
        // Unknown to a service without it, which lets unknown fields through.
        let lifetime = self.ttl_minutes.filter(|_| shared.origin.api.has_time_to_live());
        Sandbox {
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
            size: Size {
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
            hollow: matches!(shared.backend, Backend::Hollow),
            shadow: None,
        }
    }
}
