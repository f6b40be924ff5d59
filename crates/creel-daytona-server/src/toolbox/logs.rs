//! The output of a session's command, at once or as a stream.

use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, RawQuery, State as Extract};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::timeout;

use super::session::find_command;
use super::{SharedState, ToolboxQuery};
use crate::backend::OutputStream;
use crate::error::{ApiError, Result};
use crate::fault::{FaultKind, InjectedFaults};
use crate::session::ShellCommand;
use crate::shared::ServerState;

/// The prefix of a frame of standard output.
const STDOUT: [u8; 3] = [1, 1, 1];
/// The prefix of a frame of standard error.
const STDERR: [u8; 3] = [2, 2, 2];

/// Answers with the log, or follows it over a WebSocket.
pub(super) async fn logs(
    Extract(shared): SharedState,
    Path((key, session, command)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    faults: Option<Extension<InjectedFaults>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let command = find_command(&shared, &key, &session, &command)?;
    if ToolboxQuery::of(query.as_deref()).is_true("follow") {
        let upgrade = upgrade.map_err(|_| ApiError::invalid("a WebSocket is needed to follow"))?;
        let faults = faults.map(|Extension(faults)| faults).unwrap_or_default();
        let breaks = faults.get(FaultKind::BreakOff).is_some();
        let life = faults.get(FaultKind::CutStream).map(|cut| cut.lasting().unwrap_or_default());
        return Ok(upgrade.on_upgrade(move |socket| async move {
            match life {
                _ if breaks => break_off(&shared, &command, socket).await,
                // A dropped socket sends nothing more, not even a close frame.
                Some(life) => drop(timeout(life, follow(shared, command, socket)).await),
                None => follow(shared, command, socket).await,
            }
        }));
    }
    let log = command.log.borrow();
    let body = json!({
        "output": log.text(None),
        "stdout": log.text(Some(OutputStream::Stdout)),
        "stderr": log.text(Some(OutputStream::Stderr)),
    });
    Ok(axum::Json(body).into_response())
}

async fn follow(shared: Arc<ServerState>, command: Arc<ShellCommand>, mut socket: WebSocket) {
    let mut log = command.log.subscribe();
    let mut sent = 0;
    loop {
        let (frames, ended) = {
            let log = log.borrow_and_update();
            let frames: Vec<Vec<u8>> = log.chunks[sent..].iter().map(frame).collect();
            (frames, log.code.is_some())
        };
        sent += frames.len();
        for frame in frames {
            if socket.send(Message::Binary(frame.into())).await.is_err() {
                return;
            }
        }
        if ended {
            break;
        }
        tokio::select! {
            changed = log.changed() => if changed.is_err() { break },
            // Pings are answered while we read. All other messages of a client are ignored.
            received = socket.recv() => if !matches!(received, Some(Ok(_))) { return },
            () = shared.cancel.cancelled() => break,
        }
    }
    let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    // The client may have hung up first.
    let _ = socket.send(Message::Close(Some(close))).await;
}

/// Sends half of the first available frame, then closes as after a ping timeout.
async fn break_off(shared: &ServerState, command: &ShellCommand, mut socket: WebSocket) {
    let mut log = command.log.subscribe();
    let first = tokio::select! {
        received = log.wait_for(|log| !log.chunks.is_empty() || log.code.is_some()) => match received {
            Ok(log) => log.chunks.first().map(frame),
            Err(_) => None,
        },
        () = shared.cancel.cancelled() => None,
    };
    if let Some(frame) = first {
        let half = frame[..frame.len().div_ceil(2)].to_vec();
        // The client may have hung up first.
        let _ = socket.send(Message::Binary(half.into())).await;
    }
    let close = CloseFrame { code: close_code::ERROR, reason: "keepalive ping timeout".into() };
    let _ = socket.send(Message::Close(Some(close))).await;
}

fn frame((stream, chunk): &(OutputStream, Vec<u8>)) -> Vec<u8> {
    let prefix = match stream {
        OutputStream::Stdout => STDOUT,
        OutputStream::Stderr => STDERR,
    };
    [&prefix[..], chunk].concat()
}
