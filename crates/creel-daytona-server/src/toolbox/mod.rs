//! The toolbox: the API of the daemon in a sandbox, below `/toolbox/{sandbox}`.
//!
//! Every call counts as activity. A sandbox that does not run answers 400. One without a backend
//! answers as the proxy does when the daemon is dead.

mod execute;
mod files;
mod git;
mod logs;
mod metrics;
mod pty;
mod search;
mod session;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State as Extract};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::backend::SandboxBody;
use crate::error::{ApiError, Result};
use crate::percent;
use crate::shared::ServerState;
use crate::state::State;

type SharedState = Extract<Arc<ServerState>>;

/// Returns the routes below `/toolbox/{sandbox}`.
pub(crate) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/process/execute", post(execute::execute))
        .route("/process/session", get(session::list).post(session::create))
        .route("/process/session/{session}", get(session::show).delete(session::delete))
        .route("/process/session/{session}/exec", post(session::exec))
        .route("/process/session/{session}/command/{command}", get(session::command))
        .route("/process/session/{session}/command/{command}/input", post(session::input))
        .route("/process/session/{session}/command/{command}/logs", get(logs::logs))
        .route("/process/pty", get(pty::list).post(pty::create))
        .route("/process/pty/create-connect", get(pty::create_and_connect))
        .route("/process/pty/{pty}", get(pty::show).delete(pty::delete))
        .route("/process/pty/{pty}/connect", get(pty::connect))
        .route("/process/pty/{pty}/resize", post(pty::resize))
        .route("/files", get(files::list).delete(files::remove))
        .route("/files/info", get(files::info))
        .route("/files/folder", post(files::folder))
        .route("/files/find", get(search::find))
        .route("/files/search", get(search::search))
        .route("/files/replace", post(search::replace))
        .route("/files/move", post(files::rename))
        .route("/files/permissions", post(files::permissions))
        .route("/files/download", get(files::download))
        .route("/files/upload", post(files::upload))
        .route("/files/upload-v2", post(files::upload))
        .route("/files/bulk-upload", post(files::bulk_upload))
        .route("/files/bulk-download", post(files::bulk_download))
        .route("/git/clone", post(git::clone))
        .route("/work-dir", get(home))
        .route("/user-home-dir", get(home))
        .route("/version", get(version))
        .route("/system/metrics", get(metrics::metrics))
        .layer(DefaultBodyLimit::disable())
}

/// Returns the backend of a sandbox, and records the activity.
fn resolve(shared: &ServerState, key: &str) -> Result<Arc<SandboxBody>> {
    let (id, state) = {
        let registry = shared.registry();
        let sandbox = registry.find(key).ok_or_else(|| ApiError::no_sandbox(key))?;
        (sandbox.id, sandbox.state)
    };
    if state != State::Started {
        return Err(ApiError::invalid("no IP address found. Is the Sandbox started?"));
    }
    shared.touch(key)?;
    shared.bodies().get(&id).cloned().ok_or_else(ApiError::no_daemon)
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T> {
    let invalid = |error: serde_json::Error| {
        ApiError::invalid(format!("invalid request body: {error}"))
            .with_code("INVALID_REQUEST_BODY")
    };
    serde_json::from_slice(body).map_err(invalid)
}

/// The sandbox and the query of a call.
struct ToolboxRequest {
    sandbox: Arc<SandboxBody>,
    query: ToolboxQuery,
}

impl FromRequestParts<Arc<ServerState>> for ToolboxRequest {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<ServerState>) -> Result<Self> {
        let key = Path::<HashMap<String, String>>::from_request_parts(parts, shared).await;
        let key =
            key.ok().and_then(|Path(mut params)| params.remove("sandbox")).unwrap_or_default();
        Ok(Self { sandbox: resolve(shared, &key)?, query: ToolboxQuery::of(parts.uri.query()) })
    }
}

/// The query of a call.
struct ToolboxQuery(HashMap<String, String>);

impl ToolboxQuery {
    fn of(text: Option<&str>) -> Self {
        Self(percent::pairs(text.unwrap_or_default()).into_iter().collect())
    }

    fn need(&self, name: &str) -> Result<&str> {
        let missing = || ApiError::invalid(format!("{name} is required")).with_code("BAD_REQUEST");
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty()).ok_or_else(missing)
    }

    fn is_true(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == "true")
    }
}

async fn home(Extract(shared): SharedState, Path(key): Path<String>) -> Result<Response> {
    let body = resolve(&shared, &key)?;
    Ok(axum::Json(json!({ "dir": body.home() })).into_response())
}

async fn version(Extract(shared): SharedState, Path(key): Path<String>) -> Result<Response> {
    resolve(&shared, &key)?;
    Ok(axum::Json(json!({ "version": crate::VERSION })).into_response())
}
