//! What can be done with a sandbox that exists.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::error::{ApiError, Result};
use crate::fault::Mischief;
use crate::gate::Asked;
use crate::moment::Moment;
use crate::sandbox::{Pairs, Sandbox};
use crate::shared::Shared;
use crate::state::Order;

type Struck = Option<Extension<Mischief>>;
type App = Extract<Arc<Shared>>;

/// Gives an order and answers with the sandbox as it is then.
async fn order(shared: &Arc<Shared>, key: &str, order: Order, struck: Struck) -> Result<Response> {
    let mischief = struck.map(|Extension(mischief)| mischief).unwrap_or_default();
    let accepted = match shared.order(key, order, &mischief)? {
        Some(accepted) => accepted,
        None => {
            let id = shared.registry().id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
            return super::answer(shared, StatusCode::OK, &id);
        }
    };
    // Written before the wait: an accepted stop or delete is pending then.
    let at_once = super::answer(shared, StatusCode::OK, &accepted.id)?;
    if order != Order::Start {
        return Ok(at_once);
    }
    // A start that takes longer is answered with the state it has.
    if let Some(settled) = accepted.settled {
        let _ = tokio::time::timeout(shared.delays.answer, settled).await;
    }
    super::answer(shared, StatusCode::OK, &accepted.id)
}

pub(super) async fn start(
    Extract(shared): App,
    Path(key): Path<String>,
    struck: Struck,
) -> Result<Response> {
    order(&shared, &key, Order::Start, struck).await
}

pub(super) async fn stop(
    Extract(shared): App,
    Path(key): Path<String>,
    struck: Struck,
) -> Result<Response> {
    order(&shared, &key, Order::Stop, struck).await
}

pub(super) async fn archive(
    Extract(shared): App,
    Path(key): Path<String>,
    struck: Struck,
) -> Result<Response> {
    order(&shared, &key, Order::Archive, struck).await
}

pub(super) async fn pause(
    Extract(shared): App,
    Path(key): Path<String>,
    struck: Struck,
) -> Result<Response> {
    order(&shared, &key, Order::Pause, struck).await
}

pub(super) async fn recover(
    Extract(shared): App,
    Path(key): Path<String>,
    struck: Struck,
) -> Result<Response> {
    order(&shared, &key, Order::Recover, struck).await
}

pub(super) async fn destroy(
    Extract(shared): App,
    Path(key): Path<String>,
    struck: Struck,
) -> Result<Response> {
    order(&shared, &key, Order::Destroy, struck).await
}

/// Changes a sandbox and answers with it.
fn change(
    shared: &Shared,
    key: &str,
    status: StatusCode,
    with: impl FnOnce(&mut Sandbox),
) -> Result<Response> {
    let mut registry = shared.registry();
    let id = registry.id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
    if let Some(sandbox) = registry.get_mut(&id) {
        with(sandbox);
        sandbox.updated_at = Moment::now();
    }
    drop(registry);
    super::answer(shared, status, &id)
}

/// Replaces all labels.
pub(super) async fn labels(
    Extract(shared): App,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    #[derive(Deserialize)]
    struct Labels {
        labels: Pairs,
    }
    let body: Labels =
        serde_json::from_slice(&body).map_err(|error| ApiError::unparsed(error.to_string()))?;
    change(&shared, &key, StatusCode::OK, |sandbox| sandbox.labels = Arc::new(body.labels))
}

pub(super) async fn public(
    Extract(shared): App,
    Path((key, public)): Path<(String, bool)>,
) -> Result<Response> {
    change(&shared, &key, StatusCode::OK, |sandbox| sandbox.public = public)
}

pub(super) async fn auto_stop(
    Extract(shared): App,
    Path((key, minutes)): Path<(String, i64)>,
) -> Result<Response> {
    if minutes < 0 {
        return Err(ApiError::invalid("Auto-stop interval must be non-negative"));
    }
    change(&shared, &key, StatusCode::CREATED, |sandbox| sandbox.intervals.stop = minutes)
}

pub(super) async fn auto_archive(
    Extract(shared): App,
    Path((key, minutes)): Path<(String, i64)>,
) -> Result<Response> {
    if minutes < 0 {
        return Err(ApiError::invalid("Auto-archive interval must be non-negative"));
    }
    change(&shared, &key, StatusCode::CREATED, |sandbox| sandbox.intervals.archive = minutes)
}

pub(super) async fn auto_delete(
    Extract(shared): App,
    Path((key, minutes)): Path<(String, i64)>,
) -> Result<Response> {
    change(&shared, &key, StatusCode::CREATED, |sandbox| sandbox.intervals.delete = minutes)
}

pub(super) async fn time_to_live(
    Extract(shared): App,
    Path((key, minutes)): Path<(String, i64)>,
    asked: Extension<Asked>,
) -> Result<Response> {
    if !shared.origin.api.has_time_to_live() {
        return Err(super::no_route(asked).await);
    }
    if minutes < 0 {
        return Err(ApiError::invalid("ttlMinutes must be non-negative"));
    }
    // Counted from the call, not from the creation: this is how a lease is renewed.
    change(&shared, &key, StatusCode::CREATED, |sandbox| {
        sandbox.destroy_at = end_of_life(&shared, Moment::now(), minutes);
    })
}

/// Returns when a time to live ends that begins at `from`; zero minutes are none.
pub(super) fn end_of_life(shared: &Shared, from: Moment, minutes: i64) -> Option<Moment> {
    let minutes = u32::try_from(minutes).ok().filter(|minutes| *minutes > 0)?;
    Some(from.plus(shared.delays.minute * minutes))
}

/// Notes that somebody uses the sandbox; the answer is empty.
pub(super) async fn last_activity(
    Extract(shared): App,
    Path(key): Path<String>,
) -> Result<Response> {
    touch(&shared, &key)?;
    Ok(StatusCode::CREATED.into_response())
}

/// Notes that somebody uses a sandbox.
pub(crate) fn touch(shared: &Shared, key: &str) -> Result<()> {
    let mut registry = shared.registry();
    let id = registry.id_of(key).ok_or_else(|| ApiError::no_sandbox(key))?;
    if let Some(sandbox) = registry.get_mut(&id) {
        sandbox.active_at = Moment::now();
    }
    Ok(())
}
