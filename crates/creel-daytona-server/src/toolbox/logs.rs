//! What a session's command wrote, at once or as it comes.

use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, RawQuery, State as Extract};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::timeout;

use super::session::{SessionCommand, find_command};
use super::{App, Query};
use crate::backend::Stream;
use crate::error::{ApiError, Result};
use crate::fault::{Kind, Mischief};
use crate::shared::Shared;

/// What precedes a frame of the standard output.
const STDOUT: [u8; 3] = [1, 1, 1];
/// What precedes a frame of the standard error.
const STDERR: [u8; 3] = [2, 2, 2];

/// Answers with the log, or follows it over a WebSocket.
pub(super) async fn logs(
    Extract(shared): App,
    Path((key, session, command)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    mischief: Option<Extension<Mischief>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let command = find_command(&shared, &key, &session, &command)?;
    if Query::of(query.as_deref()).is_true("follow") {
        let upgrade = upgrade.map_err(|_| ApiError::invalid("a WebSocket is needed to follow"))?;
        let mischief = mischief.map(|Extension(mischief)| mischief).unwrap_or_default();
        let breaks = mischief.get(Kind::BreakOff).is_some();
        let life = mischief.get(Kind::CutStream).map(|cut| cut.lasting().unwrap_or_default());
        return Ok(upgrade.on_upgrade(move |socket| async move {
            match life {
                _ if breaks => break_off(&shared, &command, socket).await,
                // A socket that is dropped says nothing more, not even goodbye.
                Some(life) => drop(timeout(life, follow(shared, command, socket)).await),
                None => follow(shared, command, socket).await,
            }
        }));
    }
    let log = command.log.borrow();
    let body = json!({
        "output": log.text(None),
        "stdout": log.text(Some(Stream::Stdout)),
        "stderr": log.text(Some(Stream::Stderr)),
    });
    Ok(axum::Json(body).into_response())
}

async fn follow(shared: Arc<Shared>, command: Arc<SessionCommand>, mut socket: WebSocket) {
    let mut log = command.log.subscribe();
    let mut sent = 0;
    loop {
        let (frames, ended) = {
            let log = log.borrow_and_update();
            let frames: Vec<Vec<u8>> = log.pieces[sent..].iter().map(frame).collect();
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
            // Pings are answered while we read; anything else a client says is not for us.
            said = socket.recv() => if !matches!(said, Some(Ok(_))) { return },
            () = shared.cancel.cancelled() => break,
        }
    }
    let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    // A client that hung up first needs no goodbye.
    let _ = socket.send(Message::Close(Some(close))).await;
}

/// Sends half of the first frame that there is, then closes as a ping that timed out does.
async fn break_off(shared: &Shared, command: &SessionCommand, mut socket: WebSocket) {
    let mut log = command.log.subscribe();
    let first = tokio::select! {
        said = log.wait_for(|log| !log.pieces.is_empty() || log.code.is_some()) => match said {
            Ok(log) => log.pieces.first().map(frame),
            Err(_) => None,
        },
        () = shared.cancel.cancelled() => None,
    };
    if let Some(frame) = first {
        let half = frame[..frame.len().div_ceil(2)].to_vec();
        // A client that hung up first is told nothing.
        let _ = socket.send(Message::Binary(half.into())).await;
    }
    let close = CloseFrame { code: close_code::ERROR, reason: "keepalive ping timeout".into() };
    let _ = socket.send(Message::Close(Some(close))).await;
}

fn frame((stream, piece): &(Stream, Vec<u8>)) -> Vec<u8> {
    let prefix = match stream {
        Stream::Stdout => STDOUT,
        Stream::Stderr => STDERR,
    };
    [&prefix[..], piece].concat()
}
