//! `/process/pty`: terminals with WebSocket clients.
//!
//! Clients come and go. The shell stays until it ends, is killed, or its sandbox stops. An ended
//! terminal is removed, and its name is free.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, RawQuery, State as Extract};
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use creel_model::task;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use uuid::Uuid;

use super::session::sandbox_id;
use super::{SharedState, ToolboxQuery, parse, resolve};
use crate::backend::{Execution, SandboxBody, TerminalSize};
use crate::error::{ApiError, Result};
use crate::sandbox::Pairs;
use crate::session::{KILLED, Pty, PtyRequest, checked_size, exit_code};
use crate::shared::ServerState;

/// The protocol of clients that receive the exit code in a message before the end.
const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// The prefix of the environment among the protocols that a client offers.
const ENVIRONMENT: &str = "X-Daytona-Pty-Envs~";
/// The name of a terminal in error messages.
const WHAT: &str = "PTY session";

/// Creates a terminal without a shell, and registers it.
fn make(shared: &ServerState, sandbox: Uuid, request: PtyRequest) -> Result<Arc<Pty>> {
    let pty = Arc::new(Pty::open(sandbox, request)?);
    if !shared.ptys.add(sandbox, &pty.request.id, &pty) {
        let message = format!("PTY session with ID '{}' already exists", pty.request.id);
        return Err(ApiError::new(StatusCode::CONFLICT, message).with_code("CONFLICT"));
    }
    Ok(pty)
}

/// Starts the shell, unless it was already started.
async fn start(shared: &Arc<ServerState>, pty: &Arc<Pty>, body: &SandboxBody) -> Result<()> {
    let started = pty.start(body).await.inspect_err(|_| leave(shared, pty))?;
    if let Some(execution) = started {
        let pump = pump(Arc::clone(shared), Arc::clone(pty), execution);
        task::background(shared.tasks.track_future(pump));
    }
    Ok(())
}

/// Passes on the output, until the shell has ended.
async fn pump(shared: Arc<ServerState>, pty: Arc<Pty>, execution: Execution) {
    let code = pty.pump(execution, &shared.cancel).await;
    leave(&shared, &pty);
    pty.ended.send_replace(Some(code));
}

/// Unregisters the terminal, unless another one has its name by now.
fn leave(shared: &ServerState, pty: &Arc<Pty>) {
    shared.ptys.remove_value(pty.sandbox, &pty.request.id, pty);
}

pub(super) async fn create(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let pty = make(&shared, sandbox_id(&shared, &key)?, parse(&body)?)?;
    if !pty.request.lazy_start {
        start(&shared, &pty, &sandbox).await?;
    }
    let body = axum::Json(json!({ "sessionId": pty.request.id }));
    Ok((StatusCode::CREATED, body).into_response())
}

pub(super) async fn list(
    Extract(shared): SharedState,
    Path(key): Path<String>,
) -> Result<Response> {
    resolve(&shared, &key)?;
    let own = shared.ptys.all_of(sandbox_id(&shared, &key)?);
    let own: Vec<Value> = own.iter().map(|one| one.json()).collect();
    Ok(axum::Json(json!({ "sessions": own })).into_response())
}

fn find(shared: &ServerState, key: &str, name: &str) -> Result<Arc<Pty>> {
    resolve(shared, key)?;
    shared.ptys.get(sandbox_id(shared, key)?, name, WHAT)
}

pub(super) async fn show(
    Extract(shared): SharedState,
    Path((key, name)): Path<(String, String)>,
) -> Result<Response> {
    Ok(axum::Json(find(&shared, &key, &name)?.json()).into_response())
}

pub(super) async fn delete(
    Extract(shared): SharedState,
    Path((key, name)): Path<(String, String)>,
) -> Result<Response> {
    let pty = find(&shared, &key, &name)?;
    leave(&shared, &pty);
    pty.kill();
    Ok(axum::Json(json!({ "message": "PTY session deleted" })).into_response())
}

pub(super) async fn resize(
    Extract(shared): SharedState,
    Path((key, name)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response> {
    let size = checked_size(parse::<TerminalSize>(&body)?)?;
    let sandbox = resolve(&shared, &key)?;
    let gone = |_| ApiError::new(StatusCode::GONE, "PTY session not found").with_code("GONE");
    let pty = shared.ptys.get(sandbox_id(&shared, &key)?, &name, WHAT).map_err(gone)?;
    let failed =
        |error: std::io::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    pty.resize(size, &sandbox).await.map_err(failed)?;
    Ok(axum::Json(pty.json()).into_response())
}

type Upgrade = std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// Accepts the upgrade. Only a protocol that the client offered is selected.
fn accepted(upgrade: Upgrade) -> Result<WebSocketUpgrade> {
    let upgrade = upgrade.map_err(|_| ApiError::invalid("a WebSocket is needed to connect"))?;
    Ok(upgrade.protocols([EXIT_CONTROL]))
}

/// Creates a terminal, starts its shell and connects, in one request.
pub(super) async fn create_and_connect(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response> {
    let (sandbox, query) = (resolve(&shared, &key)?, ToolboxQuery::of(query.as_deref()));
    let upgrade = accepted(upgrade)?;
    let number = |name: &str| query.need(name).ok().map(|text| text.parse().unwrap_or(0));
    let request = PtyRequest {
        id: query.need("id")?.to_owned(),
        cwd: query.need("cwd").ok().map(str::to_owned),
        envs: environment(&headers)?,
        cols: number("cols"),
        rows: number("rows"),
        lazy_start: false,
    };
    let pty = make(&shared, sandbox_id(&shared, &key)?, request)?;
    // Subscribe before the start, so that no output is missed.
    let subscription = Subscription::at(&pty, &upgrade);
    start(&shared, &pty, &sandbox).await?;
    Ok(upgrade.on_upgrade(move |socket| subscription.follow(shared, socket)))
}

/// Connects to a terminal, and starts its shell if this is the first client.
pub(super) async fn connect(
    Extract(shared): SharedState,
    Path((key, name)): Path<(String, String)>,
    upgrade: Upgrade,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let upgrade = accepted(upgrade)?;
    let found = async {
        let pty = shared.ptys.get(sandbox_id(&shared, &key)?, &name, WHAT)?;
        let subscription = Subscription::at(&pty, &upgrade);
        start(&shared, &pty, &sandbox).await.map(|()| subscription)
    };
    match found.await {
        Ok(subscription) => {
            Ok(upgrade.on_upgrade(move |socket| subscription.follow(shared, socket)))
        }
        // The client receives the error on the WebSocket, as from the real service.
        Err(error) => Ok(upgrade.on_upgrade(move |socket| refuse(socket, error.message))),
    }
}

async fn refuse(mut socket: WebSocket, why: String) {
    let error = format!("Failed to connect to PTY session: {why}");
    let message = json!({ "type": "control", "status": "error", "error": error }).to_string();
    // The client may have hung up first.
    let _ = socket.send(Message::Text(message.into())).await;
    let _ = socket.send(Message::Close(None)).await;
}

/// Decodes the environment from the protocols that a client offers: base64 of JSON.
fn environment(headers: &HeaderMap) -> Result<Option<Pairs>> {
    let offered =
        headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut protocols = offered.flat_map(|value| value.split(',')).map(str::trim);
    let Some(encoded) = protocols.find_map(|protocol| protocol.strip_prefix(ENVIRONMENT)) else {
        return Ok(None);
    };
    let decoded = BASE64.decode(encoded).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let wrong = || ApiError::invalid("failed to decode PTY envs").with_code("BAD_REQUEST");
    decoded.map(Some).ok_or_else(wrong)
}

/// URL-safe base64 without padding. Like the service, it ignores the bits of the last letter that
/// carry no data.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// A client's subscription to a terminal.
struct Subscription {
    pty: Arc<Pty>,
    output: broadcast::Receiver<Bytes>,
    ended: watch::Receiver<Option<i32>>,
    /// Whether the client receives the end in a separate message.
    exit_control: bool,
}

impl Subscription {
    fn at(pty: &Arc<Pty>, upgrade: &WebSocketUpgrade) -> Self {
        Self {
            pty: Arc::clone(pty),
            output: pty.output.subscribe(),
            ended: pty.ended.subscribe(),
            exit_control: upgrade.selected_protocol().is_some(),
        }
    }

    /// Sends output and receives input, until either side ends.
    async fn follow(mut self, shared: Arc<ServerState>, mut socket: WebSocket) {
        let connected = json!({ "type": "control", "status": "connected" }).to_string();
        if socket.send(Message::Text(connected.into())).await.is_err() {
            return;
        }
        let code = loop {
            tokio::select! {
                // Output is sent before the exit code.
                biased;
                shown = self.output.recv() => match shown {
                    Ok(chunk) => if socket.send(Message::Binary(chunk)).await.is_err() { return },
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                code = exit_code(&mut self.ended) => break code,
                received = socket.recv() => match received {
                    Some(Ok(Message::Binary(typed))) => self.pty.type_in(&typed).await,
                    Some(Ok(Message::Text(typed))) => self.pty.type_in(typed.as_bytes()).await,
                    // Pings are answered by the library.
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                },
                () = shared.cancel.cancelled() => return,
            }
        };
        while let Ok(chunk) = self.output.try_recv() {
            if socket.send(Message::Binary(chunk)).await.is_err() {
                return;
            }
        }
        send_exit_code(socket, code, self.exit_control).await;
    }
}

/// Sends a client the exit code of the shell, and closes the connection.
async fn send_exit_code(mut socket: WebSocket, code: i32, exit_control: bool) {
    let mut message = json!({ "exitCode": code });
    if let Some(why) = reason(code) {
        message["exitReason"] = json!(why);
    }
    let reason = message.to_string().into();
    if exit_control {
        message["type"] = json!("control");
        message["status"] = json!("exited");
        if socket.send(Message::Text(message.to_string().into())).await.is_err() {
            return;
        }
    }
    let clean = if code == 0 { close_code::NORMAL } else { close_code::ERROR };
    let close = Message::Close(Some(CloseFrame { code: clean, reason }));
    // The client may have hung up first.
    let _ = socket.send(close).await;
}

/// Returns a description of how a shell ended.
fn reason(code: i32) -> Option<String> {
    match code {
        0 => None,
        130 => Some("Ctrl+C".to_owned()),
        KILLED => Some("SIGKILL".to_owned()),
        143 => Some("SIGTERM".to_owned()),
        129.. => Some(format!("signal {}", code - 128)),
        _ => Some("non-zero exit".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_parsed_from_the_protocols() {
        let mut headers = HeaderMap::new();
        assert!(environment(&headers).unwrap().is_none());
        let offered = format!("{EXIT_CONTROL}, {ENVIRONMENT}eyJBIjoiw7w_PiJ9");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, offered.parse().unwrap());
        let env = environment(&headers).unwrap().unwrap();
        assert_eq!(env.get("A").map(String::as_str), Some("ü?>"));
        let broken = format!("{ENVIRONMENT}***");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, broken.parse().unwrap());
        assert!(environment(&headers).is_err());
    }
}
