//! The routes below `/api`.

mod access;
mod act;
mod create;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Router};
use serde::Serialize;
use uuid::Uuid;

use crate::error::{ApiError, Result};
use crate::query::{NumberedQuery, SandboxListQuery};
use crate::route::RequestLine;
use crate::shared::ServerState;

/// Returns the routes below `/api`.
pub(crate) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/sandbox", get(list).post(create::create))
        .route("/sandbox/paginated", get(paginated))
        .route("/sandbox/{key}", get(one).delete(act::destroy))
        .route("/sandbox/{key}/start", post(act::start))
        .route("/sandbox/{key}/stop", post(act::stop))
        .route("/sandbox/{key}/archive", post(act::archive))
        .route("/sandbox/{key}/pause", post(act::pause))
        .route("/sandbox/{key}/recover", post(act::recover))
        .route("/sandbox/{key}/labels", put(act::labels))
        .route("/sandbox/{key}/public/{public}", post(act::public))
        .route("/sandbox/{key}/autostop/{minutes}", post(act::auto_stop))
        .route("/sandbox/{key}/autoarchive/{minutes}", post(act::auto_archive))
        .route("/sandbox/{key}/autodelete/{minutes}", post(act::auto_delete))
        .route("/sandbox/{key}/ttl/{minutes}", post(act::time_to_live))
        .route("/sandbox/{key}/last-activity", post(act::last_activity))
        .route("/sandbox/{key}/ports/{port}/preview-url", get(access::preview))
        .route("/sandbox/{key}/ports/{port}/signed-preview-url", get(access::signed_preview))
        .route("/sandbox/{key}/ssh-access", post(access::ssh).merge(delete(access::revoke_ssh)))
        .route("/sandbox/{key}/toolbox-proxy-url", get(access::toolbox_url))
        .route("/config", get(access::config))
        .route("/api-keys/current", get(access::current_key))
        .fallback(no_route)
}

/// Answers requests for unknown routes, including Socket.IO.
pub(crate) async fn no_route(Extension(request_line): Extension<RequestLine>) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        format!("Cannot {} {}", request_line.method, request_line.address),
    )
}

async fn list(
    State(shared): State<Arc<ServerState>>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let query = SandboxListQuery::parse(query.as_deref().unwrap_or_default())?;
    let page = query.page(&shared.registry(), &shared.origin)?;
    Ok(([(CONTENT_TYPE, "application/json; charset=utf-8")], Body::from(page)).into_response())
}

/// The list for older clients: pages by number, and sandboxes in full.
async fn paginated(
    State(shared): State<Arc<ServerState>>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let query = NumberedQuery::parse(query.as_deref().unwrap_or_default())?;
    let registry = shared.registry();
    json(StatusCode::OK, &query.page(&registry, &shared.origin))
}

async fn one(State(shared): State<Arc<ServerState>>, Path(key): Path<String>) -> Result<Response> {
    let registry = shared.registry();
    let sandbox = registry.find(&key).ok_or_else(|| ApiError::no_sandbox(&key))?;
    json(StatusCode::OK, &sandbox.full(&shared.origin))
}

/// Answers with a sandbox, whatever its state.
fn respond(shared: &ServerState, status: StatusCode, id: &Uuid) -> Result<Response> {
    let registry = shared.registry();
    let sandbox = registry.get(id).ok_or_else(|| ApiError::no_sandbox(&id.to_string()))?;
    json(status, &sandbox.full(&shared.origin))
}

fn json(status: StatusCode, value: &impl Serialize) -> Result<Response> {
    let text = serde_json::to_vec(value)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let kind = [(CONTENT_TYPE, "application/json; charset=utf-8")];
    Ok((status, kind, Body::from(text)).into_response())
}
