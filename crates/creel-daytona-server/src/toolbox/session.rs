//! `/process/session`: shells that run commands one after the other.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use creel_model::task;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{SharedState, parse, resolve};
use crate::backend::{OutputStream, Program, ShellInput};
use crate::error::{ApiError, Result};
use crate::session::{ShellCommand, ShellSession};
use crate::shared::ServerState;

/// Finds a session of a running sandbox.
pub(super) fn find(shared: &ServerState, key: &str, session: &str) -> Result<Arc<ShellSession>> {
    resolve(shared, key)?;
    shared.sessions.get(sandbox_id(shared, key)?, session, "session")
}

/// Finds a command of a session.
pub(super) fn find_command(
    shared: &ServerState,
    key: &str,
    session: &str,
    command: &str,
) -> Result<Arc<ShellCommand>> {
    find(shared, key, session)?.command(command)
}

pub(super) fn sandbox_id(shared: &ServerState, key: &str) -> Result<Uuid> {
    shared.registry().id_of(key).ok_or_else(|| ApiError::no_sandbox(key))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateSession {
    session_id: String,
}

pub(super) async fn create(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let id = sandbox_id(&shared, &key)?;
    let name = parse::<CreateSession>(&body)?.session_id;
    if shared.sessions.get(id, &name, "session").is_ok() {
        let message = "session already exists";
        return Err(ApiError::new(StatusCode::CONFLICT, message).with_code("CONFLICT"));
    }
    let program = Program {
        script: ShellInput::Open,
        cwd: None,
        env: crate::sandbox::Pairs::new(),
        merged: false,
    };
    let execution = sandbox.run(program).await.map_err(|_| ApiError::no_daemon())?;
    let (session, runner) = ShellSession::new(&name, execution)?;
    shared.sessions.set(id, &name, session);
    let cancel = shared.cancel.clone();
    task::background(shared.tasks.track_future(async move {
        tokio::select! {
            () = runner.run() => {}
            () = cancel.cancelled() => {}
        }
    }));
    Ok(StatusCode::CREATED.into_response())
}

pub(super) async fn list(
    Extract(shared): SharedState,
    Path(key): Path<String>,
) -> Result<Response> {
    resolve(&shared, &key)?;
    let own = shared.sessions.all_of(sandbox_id(&shared, &key)?);
    let own: Vec<serde_json::Value> = own.iter().map(|session| session.json()).collect();
    Ok(axum::Json(own).into_response())
}

pub(super) async fn show(
    Extract(shared): SharedState,
    Path((key, session)): Path<(String, String)>,
) -> Result<Response> {
    Ok(axum::Json(find(&shared, &key, &session)?.json()).into_response())
}

pub(super) async fn delete(
    Extract(shared): SharedState,
    Path((key, name)): Path<(String, String)>,
) -> Result<Response> {
    let session = find(&shared, &key, &name)?;
    session.kill();
    shared.sessions.remove(sandbox_id(&shared, &key)?, &name);
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecuteInSession {
    command: String,
    #[serde(default)]
    run_async: bool,
    #[serde(default)]
    r#async: bool,
}

pub(super) async fn exec(
    Extract(shared): SharedState,
    Path((key, session)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response> {
    let session = find(&shared, &key, &session)?;
    let request: ExecuteInSession = parse(&body)?;
    let command = session.run(request.command).await?;
    if request.run_async || request.r#async {
        let body = axum::Json(json!({ "cmdId": command.id }));
        return Ok((StatusCode::ACCEPTED, body).into_response());
    }
    let mut log = command.log.subscribe();
    let log = log.wait_for(|log| log.code.is_some()).await;
    let log = log.map_err(|_| ApiError::no_daemon())?;
    let body = json!({
        "cmdId": command.id,
        "exitCode": log.code,
        "output": log.text(None),
        "stdout": log.text(Some(OutputStream::Stdout)),
        "stderr": log.text(Some(OutputStream::Stderr)),
    });
    Ok(axum::Json(body).into_response())
}

pub(super) async fn command(
    Extract(shared): SharedState,
    Path((key, session, command)): Path<(String, String, String)>,
) -> Result<Response> {
    let command = find_command(&shared, &key, &session, &command)?;
    Ok(axum::Json(command.json()).into_response())
}

#[derive(Debug, Deserialize)]
struct SessionInput {
    data: String,
}

pub(super) async fn input(
    Extract(shared): SharedState,
    Path((key, name, command)): Path<(String, String, String)>,
    body: Bytes,
) -> Result<Response> {
    let session = find(&shared, &key, &name)?;
    if session.command(&command)?.log.borrow().code.is_some() {
        let message = "command has completed";
        return Err(ApiError::new(StatusCode::GONE, message).with_code("COMMAND_ALREADY_COMPLETED"));
    }
    session.input(parse::<SessionInput>(&body)?.data.into_bytes()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
