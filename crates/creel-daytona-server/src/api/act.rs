//! Operations on an existing sandbox.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::error::{ApiError, Result};
use crate::fault::InjectedFaults;
use crate::moment::Moment;
use crate::route::RequestLine;
use crate::sandbox::{Pairs, SandboxRecord};
use crate::shared::ServerState;
use crate::state::Action;

type FaultsExtension = Option<Extension<InjectedFaults>>;
type SharedState = Extract<Arc<ServerState>>;

/// Applies an action, and responds with the resulting sandbox.
async fn apply(
    shared: &Arc<ServerState>,
    key: &str,
    action: Action,
    faults: FaultsExtension,
) -> Result<Response> {
    let faults = faults.map(|Extension(faults)| faults).unwrap_or_default();
    let accepted = match shared.apply_action(key, action, &faults)? {
        Some(accepted) => accepted,
        None => {
            let id = shared.registry().id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
            return super::respond(shared, StatusCode::OK, &id);
        }
    };
    // Rendered before the wait, so that an accepted stop or delete is shown as pending.
    let at_once = super::respond(shared, StatusCode::OK, &accepted.id)?;
    if action != Action::Start {
        return Ok(at_once);
    }
    // A start that takes longer is answered with the current state.
    if let Some(finished) = accepted.finished {
        let _ = tokio::time::timeout(shared.delays.answer, finished).await;
    }
    super::respond(shared, StatusCode::OK, &accepted.id)
}

pub(super) async fn start(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    faults: FaultsExtension,
) -> Result<Response> {
    apply(&shared, &key, Action::Start, faults).await
}

pub(super) async fn stop(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    faults: FaultsExtension,
) -> Result<Response> {
    apply(&shared, &key, Action::Stop, faults).await
}

pub(super) async fn archive(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    faults: FaultsExtension,
) -> Result<Response> {
    apply(&shared, &key, Action::Archive, faults).await
}

pub(super) async fn pause(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    faults: FaultsExtension,
) -> Result<Response> {
    apply(&shared, &key, Action::Pause, faults).await
}

pub(super) async fn recover(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    faults: FaultsExtension,
) -> Result<Response> {
    apply(&shared, &key, Action::Recover, faults).await
}

pub(super) async fn destroy(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    faults: FaultsExtension,
) -> Result<Response> {
    apply(&shared, &key, Action::Destroy, faults).await
}

/// Changes a sandbox, and answers with it.
fn change(
    shared: &ServerState,
    key: &str,
    status: StatusCode,
    with: impl FnOnce(&mut SandboxRecord),
) -> Result<Response> {
    let mut registry = shared.registry();
    let id = registry.id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
    if let Some(sandbox) = registry.get_mut(&id) {
        with(sandbox);
        sandbox.updated_at = Moment::now();
    }
    drop(registry);
    super::respond(shared, status, &id)
}

/// Replaces all labels.
pub(super) async fn labels(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    #[derive(Deserialize)]
    struct LabelsBody {
        labels: Pairs,
    }
    let body: LabelsBody =
        serde_json::from_slice(&body).map_err(|error| ApiError::unparsed(error.to_string()))?;
    change(&shared, &key, StatusCode::OK, |sandbox| sandbox.labels = Arc::new(body.labels))
}

pub(super) async fn public(
    Extract(shared): SharedState,
    Path((key, public)): Path<(String, bool)>,
) -> Result<Response> {
    change(&shared, &key, StatusCode::OK, |sandbox| sandbox.public = public)
}

pub(super) async fn auto_stop(
    Extract(shared): SharedState,
    Path((key, minutes)): Path<(String, i64)>,
) -> Result<Response> {
    if minutes < 0 {
        return Err(ApiError::invalid("Auto-stop interval must be non-negative"));
    }
    change(&shared, &key, StatusCode::CREATED, |sandbox| sandbox.intervals.stop = minutes)
}

pub(super) async fn auto_archive(
    Extract(shared): SharedState,
    Path((key, minutes)): Path<(String, i64)>,
) -> Result<Response> {
    if minutes < 0 {
        return Err(ApiError::invalid("Auto-archive interval must be non-negative"));
    }
    change(&shared, &key, StatusCode::CREATED, |sandbox| sandbox.intervals.archive = minutes)
}

pub(super) async fn auto_delete(
    Extract(shared): SharedState,
    Path((key, minutes)): Path<(String, i64)>,
) -> Result<Response> {
    change(&shared, &key, StatusCode::CREATED, |sandbox| sandbox.intervals.delete = minutes)
}

pub(super) async fn time_to_live(
    Extract(shared): SharedState,
    Path((key, minutes)): Path<(String, i64)>,
    request_line: Extension<RequestLine>,
) -> Result<Response> {
    if !shared.origin.api.has_time_to_live() {
        return Err(super::no_route(request_line).await);
    }
    if minutes < 0 {
        return Err(ApiError::invalid("ttlMinutes must be non-negative"));
    }
    // Counted from the call, not from the creation: this is how a lease is renewed.
    change(&shared, &key, StatusCode::CREATED, |sandbox| {
        sandbox.destroy_at = end_of_life(&shared, Moment::now(), minutes);
    })
}

/// Returns when a time to live that begins at `from` ends. Zero minutes mean none.
pub(super) fn end_of_life(shared: &ServerState, from: Moment, minutes: i64) -> Option<Moment> {
    let minutes = u32::try_from(minutes).ok().filter(|minutes| *minutes > 0)?;
    Some(from.plus(shared.delays.minute * minutes))
}

/// Records that the sandbox is in use. The response is empty.
pub(super) async fn last_activity(
    Extract(shared): SharedState,
    Path(key): Path<String>,
) -> Result<Response> {
    shared.touch(&key)?;
    Ok(StatusCode::CREATED.into_response())
}
