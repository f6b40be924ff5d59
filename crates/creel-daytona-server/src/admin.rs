//! The admin routes: faults, seeds and counts, for clients that know the secret path.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::{ApiError, Result};
use crate::fault::FaultSpec;
use crate::lock::lock;
use crate::moment::Moment;
use crate::sandbox::{Allowed, Intervals, SandboxRecord, SandboxSize};
use crate::settings::{DEFAULT_REGION, Seed};
use crate::shared::{Counts, ServerState};
use crate::state::State;

/// Returns the admin routes.
pub(crate) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/faults", post(add_fault).get(list_faults).delete(clear_faults))
        .route("/seed", post(seed))
        .route("/sandboxes", get(sandboxes))
        .route("/requests", get(counts).delete(reset_counts))
        .route("/permissions", get(permissions).put(set_permissions))
        .route("/identity", get(identity))
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid(error.to_string()))
}

async fn add_fault(Extract(shared): Extract<Arc<ServerState>>, body: Bytes) -> Result<Json<Value>> {
    let spec: FaultSpec = parse(&body)?;
    let id = shared.faults().add(spec);
    Ok(Json(json!({ "id": id })))
}

async fn list_faults(Extract(shared): Extract<Arc<ServerState>>) -> Json<Value> {
    Json(json!({ "faults": shared.faults().all() }))
}

async fn clear_faults(Extract(shared): Extract<Arc<ServerState>>) -> Json<Value> {
    shared.faults().clear();
    Json(json!({ "faults": [] }))
}

async fn seed(Extract(shared): Extract<Arc<ServerState>>, body: Bytes) -> Result<Json<Value>> {
    let seed: Seed = parse(&body)?;
    let ids = plant(&shared, &seed);
    Ok(Json(json!({ "ids": ids })))
}

/// Returns the true state of every sandbox that is not gone, whatever the API shows of it.
async fn sandboxes(Extract(shared): Extract<Arc<ServerState>>) -> Json<Value> {
    let registry = shared.registry();
    let there = registry.after(None).filter(|sandbox| sandbox.state != State::Destroyed);
    let rows: Vec<Value> = there.map(|sandbox| json!(sandbox.row(&shared.origin))).collect();
    Json(json!({ "sandboxes": rows }))
}

async fn counts(Extract(shared): Extract<Arc<ServerState>>) -> Json<Counts> {
    Json(shared.counts().clone())
}

async fn reset_counts(Extract(shared): Extract<Arc<ServerState>>) -> Json<Counts> {
    Json(std::mem::take(&mut *shared.counts()))
}

async fn permissions(Extract(shared): Extract<Arc<ServerState>>) -> Json<Vec<String>> {
    Json(lock(&shared.access.permissions).clone())
}

async fn set_permissions(
    Extract(shared): Extract<Arc<ServerState>>,
    body: Bytes,
) -> Result<Json<Vec<String>>> {
    let permissions: Vec<String> = parse(&body)?;
    lock(&shared.access.permissions).clone_from(&permissions);
    Ok(Json(permissions))
}

async fn identity(Extract(shared): Extract<Arc<ServerState>>) -> Json<Value> {
    let access = &shared.access;
    let organization = &shared.origin.organization;
    Json(json!({ "organization_id": organization, "jwt": access.jwt, "api_key": access.api_key }))
}

/// Adds sandboxes without a process, and returns their ids.
pub(crate) fn plant(shared: &ServerState, seed: &Seed) -> Vec<Uuid> {
    let labels = Arc::new(seed.labels.clone());
    let (env, target) = (Arc::default(), Arc::from(DEFAULT_REGION));
    let ago = |seconds: u64| {
        let age = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000);
        Moment(Moment::now().0.saturating_sub(age))
    };
    let (at, active_at) =
        (ago(seed.age_seconds), ago(seed.idle_seconds.unwrap_or(seed.age_seconds)));
    let mut registry = shared.registry();
    let mut ids = Vec::with_capacity(seed.count);
    let reason = seed.error_reason.clone().unwrap_or_else(|| "seeded in error".to_owned());
    for number in 1..=seed.count {
        let earlier = if seed.same_millisecond { 0 } else { seed.count - number };
        let created = Moment(at.0.saturating_sub(i64::try_from(earlier).unwrap_or(i64::MAX)));
        let (id, sequence) = (Uuid::new_v4(), registry.next_sequence());
        let name = match (&seed.name, &seed.name_prefix) {
            (Some(name), _) => name.clone(),
            (None, Some(prefix)) => format!("{prefix}{sequence}"),
            (None, None) => id.to_string(),
        };
        let error = matches!(seed.state, State::Error | State::BuildFailed);
        let added = registry.add(SandboxRecord {
            id,
            name,
            sequence,
            snapshot: None,
            build: None,
            user: "daytona".to_owned(),
            env: Arc::clone(&env),
            labels: Arc::clone(&labels),
            public: false,
            network_block_all: false,
            allowed: Allowed::default(),
            target: Arc::clone(&target),
            size: SandboxSize::default(),
            state: seed.state,
            desired: seed.state.desired(),
            pending: None,
            error_reason: error.then(|| reason.clone()),
            recoverable: seed.recoverable,
            intervals: Intervals::default(),
            destroy_at: None,
            created_at: created,
            updated_at: created,
            active_at,
            generation: 0,
            hollow: true,
            shadow: None,
        });
        if added {
            ids.push(id);
        }
    }
    ids
}
