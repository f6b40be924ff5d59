//! Terminals: an interactive shell, seen and typed to over WebSockets.
//!
//! ```text
//!   WebSocket ──typed──▶ terminal ◀──▶ shell in the sandbox
//!       ▲                   │
//!       └──broadcast──── pump ──▶ how it ended
//! ```
//!
//! Clients come and go; the shell stays until it ends, is killed, or its
//! sandbox stops. One that has ended is forgotten, and its name is free.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, RawQuery, State as Extract};
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use creel_core::task;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, broadcast, watch};
use uuid::Uuid;

use super::session::sandbox_id;
use super::{App, Query, parse, resolve};
use crate::backend::{Body, Event, Execution, Killer, Program, Script, Size, Terminal};
use crate::error::{ApiError, Result};
use crate::moment::Moment;
use crate::sandbox::Pairs;
use crate::shared::{Shared, lock};

/// A client that offers this is told the exit code in a message before the end.
const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// What precedes the environment among the protocols that a client offers.
const ENVIRONMENT: &str = "X-Daytona-Pty-Envs~";
/// How many pieces of output a client may be behind.
const BACKLOG: usize = 1024;
/// The largest piece of output.
const PIECE: usize = 16 * 1024;
/// The code of a shell that was killed.
const KILLED: i32 = 137;
/// The most columns or rows.
const LARGEST: u16 = 1000;

/// What a terminal is called when there is none.
const WHAT: &str = "PTY session";

/// One terminal.
#[derive(Debug)]
pub(crate) struct Pty {
    sandbox: Uuid,
    order: Order,
    size: Mutex<Size>,
    created_at: Moment,
    terminal: Terminal,
    /// What the terminal shows, for whoever looks.
    output: broadcast::Sender<Bytes>,
    /// How the shell ended.
    ended: watch::Sender<Option<i32>>,
    /// Ends the shell; empty until it was started.
    shell: OnceCell<Killer>,
}

/// What a terminal is to be.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    #[serde(default)]
    id: String,
    cwd: Option<String>,
    envs: Option<Pairs>,
    cols: Option<u16>,
    rows: Option<u16>,
    #[serde(default)]
    lazy_start: bool,
}

impl Order {
    fn size(&self) -> Result<Size> {
        let size = Size { cols: self.cols.unwrap_or(80), rows: self.rows.unwrap_or(24) };
        checked(size)
    }
}

fn checked(size: Size) -> Result<Size> {
    let fits = |length: u16| (1..=LARGEST).contains(&length);
    let wrong = || {
        let message = format!("cols and rows must be between 1 and {LARGEST}");
        ApiError::invalid(message).with_code("BAD_REQUEST")
    };
    if fits(size.cols) && fits(size.rows) { Ok(size) } else { Err(wrong()) }
}

impl Pty {
    /// Makes a terminal on which nothing runs yet, and puts it on the list.
    fn make(shared: &Shared, sandbox: Uuid, order: Order) -> Result<Arc<Self>> {
        let size = order.size()?;
        if order.id.is_empty() {
            return Err(ApiError::invalid("session ID is required").with_code("BAD_REQUEST"));
        }
        let failed = |error: std::io::Error| {
            let message = format!("failed to start PTY session: {error}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        };
        let pty = Arc::new(Self {
            sandbox,
            size: Mutex::new(size),
            created_at: Moment::now(),
            terminal: Terminal::open(size).map_err(failed)?,
            output: broadcast::Sender::new(BACKLOG),
            ended: watch::Sender::new(None),
            shell: OnceCell::new(),
            order,
        });
        let mut all = lock(&shared.ptys.0);
        let key = (sandbox, pty.order.id.clone());
        if all.contains_key(&key) {
            let message = format!("PTY session with ID '{}' already exists", pty.order.id);
            return Err(ApiError::new(StatusCode::CONFLICT, message).with_code("CONFLICT"));
        }
        all.insert(key, Arc::clone(&pty));
        Ok(pty)
    }

    /// Starts the shell, unless it was started.
    async fn start(self: &Arc<Self>, shared: &Arc<Shared>, body: &Body) -> Result<()> {
        let start = || async {
            let mut env = self.order.envs.clone().unwrap_or_default();
            env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
            let cwd = self.order.cwd.clone().filter(|cwd| !cwd.is_empty());
            let script = Script::Terminal;
            let program = Program { script, cwd, env, merged: true };
            let execution = body.run_on(program, Some(&self.terminal)).await;
            let execution = execution.map_err(|_| ApiError::no_daemon())?;
            let killer = execution.killer();
            let pump = Arc::clone(self).pump(Arc::clone(shared), execution);
            task::background(shared.tasks.track_future(pump));
            Ok(killer)
        };
        let started = self.shell.get_or_try_init(start).await.map(drop);
        if started.is_err() {
            self.leave(shared);
        }
        started
    }

    /// Passes on what is shown, until the shell has ended.
    async fn pump(self: Arc<Self>, shared: Arc<Shared>, mut execution: Execution) {
        let mut buffer = vec![0; PIECE];
        let mut killed = self.ended.subscribe();
        let code = loop {
            tokio::select! {
                read = self.terminal.read(&mut buffer) => match read {
                    Ok(count) => self.show(&buffer[..count]),
                    Err(_) => break -1,
                },
                event = execution.events.recv() => match event {
                    Some(Event::Output(_, piece)) => self.show(&piece),
                    Some(Event::Ended(code)) => break code,
                    None => break KILLED,
                },
                code = code_of(&mut killed) => break code,
                () = shared.cancel.cancelled() => break KILLED,
            }
        };
        while let Some(count) = self.terminal.read_now(&mut buffer) {
            self.show(&buffer[..count]);
        }
        self.leave(&shared);
        self.ended.send_replace(Some(code));
    }

    async fn type_in(&self, typed: &[u8]) {
        // A terminal that cannot be typed to has ended, which is told in its turn.
        let _ = self.terminal.write(typed).await;
    }

    fn show(&self, piece: &[u8]) {
        // Nobody may be looking; what they miss is not kept.
        let _ = self.output.send(Bytes::copy_from_slice(piece));
    }

    /// Takes itself off the list, unless another has its name by now.
    fn leave(self: &Arc<Self>, shared: &Shared) {
        let key = (self.sandbox, self.order.id.clone());
        let mut all = lock(&shared.ptys.0);
        if all.get(&key).is_some_and(|known| Arc::ptr_eq(known, self)) {
            all.remove(&key);
        }
    }

    fn json(&self) -> Value {
        let size = *lock(&self.size);
        json!({
            "id": self.order.id,
            "cwd": self.order.cwd.as_deref().unwrap_or_default(),
            "envs": self.order.envs.clone().unwrap_or_default(),
            "cols": size.cols,
            "rows": size.rows,
            "createdAt": self.created_at,
            "active": self.shell.initialized() && self.ended.borrow().is_none(),
            "lazyStart": self.order.lazy_start,
        })
    }
}

pub(super) async fn create(
    Extract(shared): App,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let pty = Pty::make(&shared, sandbox_id(&shared, &key)?, parse(&body)?)?;
    if !pty.order.lazy_start {
        pty.start(&shared, &sandbox).await?;
    }
    let body = axum::Json(json!({ "sessionId": pty.order.id }));
    Ok((StatusCode::CREATED, body).into_response())
}

pub(super) async fn list(Extract(shared): App, Path(key): Path<String>) -> Result<Response> {
    resolve(&shared, &key)?;
    let id = sandbox_id(&shared, &key)?;
    let all = lock(&shared.ptys.0);
    let own: Vec<Value> =
        all.values().filter(|one| one.sandbox == id).map(|one| one.json()).collect();
    Ok(axum::Json(json!({ "sessions": own })).into_response())
}

fn find(shared: &Shared, key: &str, name: &str) -> Result<Arc<Pty>> {
    resolve(shared, key)?;
    shared.ptys.get(sandbox_id(shared, key)?, name, WHAT)
}

pub(super) async fn show(
    Extract(shared): App,
    Path((key, name)): Path<(String, String)>,
) -> Result<Response> {
    Ok(axum::Json(find(&shared, &key, &name)?.json()).into_response())
}

pub(super) async fn delete(
    Extract(shared): App,
    Path((key, name)): Path<(String, String)>,
) -> Result<Response> {
    let pty = find(&shared, &key, &name)?;
    pty.leave(&shared);
    if let Some(shell) = pty.shell.get() {
        shell.kill();
    }
    pty.ended.send_replace(Some(KILLED));
    Ok(axum::Json(json!({ "message": "PTY session deleted" })).into_response())
}

pub(super) async fn resize(
    Extract(shared): App,
    Path((key, name)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response> {
    let size = checked(parse::<Size>(&body)?)?;
    let sandbox = resolve(&shared, &key)?;
    let gone = |_| ApiError::new(StatusCode::GONE, "PTY session not found").with_code("GONE");
    let pty = shared.ptys.get(sandbox_id(&shared, &key)?, &name, WHAT).map_err(gone)?;
    let failed =
        |error: std::io::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    pty.terminal.resize(size).map_err(failed)?;
    sandbox.resize(&pty.terminal).await.map_err(failed)?;
    *lock(&pty.size) = size;
    Ok(axum::Json(pty.json()).into_response())
}

type Upgrade = std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// Takes the way in; only what a client offered is chosen.
fn accepted(upgrade: Upgrade) -> Result<WebSocketUpgrade> {
    let upgrade = upgrade.map_err(|_| ApiError::invalid("a WebSocket is needed to connect"))?;
    Ok(upgrade.protocols([EXIT_CONTROL]))
}

/// Makes a terminal, starts its shell and connects, in one go.
pub(super) async fn create_and_connect(
    Extract(shared): App,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response> {
    let (sandbox, query) = (resolve(&shared, &key)?, Query::of(query.as_deref()));
    let upgrade = accepted(upgrade)?;
    let number = |name: &str| query.need(name).ok().map(|text| text.parse().unwrap_or(0));
    let order = Order {
        id: query.need("id")?.to_owned(),
        cwd: query.need("cwd").ok().map(str::to_owned),
        envs: environment(&headers)?,
        cols: number("cols"),
        rows: number("rows"),
        lazy_start: false,
    };
    let pty = Pty::make(&shared, sandbox_id(&shared, &key)?, order)?;
    // Looking comes before starting, so that nothing is missed.
    let look = Look::at(&pty, &upgrade);
    pty.start(&shared, &sandbox).await?;
    Ok(upgrade.on_upgrade(move |socket| look.follow(shared, socket)))
}

/// Connects to a terminal; one that waits for its first client is started.
pub(super) async fn connect(
    Extract(shared): App,
    Path((key, name)): Path<(String, String)>,
    upgrade: Upgrade,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let upgrade = accepted(upgrade)?;
    let found = async {
        let pty = shared.ptys.get(sandbox_id(&shared, &key)?, &name, WHAT)?;
        let look = Look::at(&pty, &upgrade);
        pty.start(&shared, &sandbox).await.map(|()| look)
    };
    match found.await {
        Ok(look) => Ok(upgrade.on_upgrade(move |socket| look.follow(shared, socket))),
        // A client learns of it on the WebSocket, as from the real service.
        Err(error) => Ok(upgrade.on_upgrade(move |socket| refuse(socket, error.message))),
    }
}

async fn refuse(mut socket: WebSocket, why: String) {
    let error = format!("Failed to connect to PTY session: {why}");
    let told = json!({ "type": "control", "status": "error", "error": error }).to_string();
    // A client that hung up first needs no goodbye.
    let _ = socket.send(Message::Text(told.into())).await;
    let _ = socket.send(Message::Close(None)).await;
}

/// Reads the environment off the protocols that a client offers: base64 of JSON.
fn environment(headers: &HeaderMap) -> Result<Option<Pairs>> {
    let offered =
        headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut words = offered.flat_map(|value| value.split(',')).map(str::trim);
    let Some(encoded) = words.find_map(|word| word.strip_prefix(ENVIRONMENT)) else {
        return Ok(None);
    };
    let decoded = decoded(encoded).and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let wrong = || ApiError::invalid("failed to decode PTY envs").with_code("BAD_REQUEST");
    decoded.map(Some).ok_or_else(wrong)
}

/// Decodes base64 as it is written in addresses, without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(bytes)
}

/// A client's look at a terminal.
struct Look {
    pty: Arc<Pty>,
    output: broadcast::Receiver<Bytes>,
    ended: watch::Receiver<Option<i32>>,
    /// Whether it is told the end in a message of its own.
    exit_control: bool,
}

impl Look {
    fn at(pty: &Arc<Pty>, upgrade: &WebSocketUpgrade) -> Self {
        Self {
            pty: Arc::clone(pty),
            output: pty.output.subscribe(),
            ended: pty.ended.subscribe(),
            exit_control: upgrade.selected_protocol().is_some(),
        }
    }

    /// Shows what there is to see and types what is sent, until either side ends.
    async fn follow(mut self, shared: Arc<Shared>, mut socket: WebSocket) {
        let connected = json!({ "type": "control", "status": "connected" }).to_string();
        if socket.send(Message::Text(connected.into())).await.is_err() {
            return;
        }
        let code = loop {
            tokio::select! {
                // What was shown comes before the word that it has ended.
                biased;
                shown = self.output.recv() => match shown {
                    Ok(piece) => if socket.send(Message::Binary(piece)).await.is_err() { return },
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                code = code_of(&mut self.ended) => break code,
                said = socket.recv() => match said {
                    Some(Ok(Message::Binary(typed))) => self.pty.type_in(&typed).await,
                    Some(Ok(Message::Text(typed))) => self.pty.type_in(typed.as_bytes()).await,
                    // Pings are answered by the library.
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                },
                () = shared.cancel.cancelled() => return,
            }
        };
        while let Ok(piece) = self.output.try_recv() {
            if socket.send(Message::Binary(piece)).await.is_err() {
                return;
            }
        }
        say_goodbye(socket, code, self.exit_control).await;
    }
}

/// Waits for the end of a shell; returns its code.
async fn code_of(ended: &mut watch::Receiver<Option<i32>>) -> i32 {
    let ended = ended.wait_for(Option::is_some).await;
    ended.ok().and_then(|code| *code).unwrap_or(KILLED)
}

/// Tells a client how the shell ended, and hangs up.
async fn say_goodbye(mut socket: WebSocket, code: i32, exit_control: bool) {
    let mut told = json!({ "exitCode": code });
    if let Some(why) = reason(code) {
        told["exitReason"] = json!(why);
    }
    let reason = told.to_string().into();
    if exit_control {
        told["type"] = json!("control");
        told["status"] = json!("exited");
        if socket.send(Message::Text(told.to_string().into())).await.is_err() {
            return;
        }
    }
    let clean = if code == 0 { close_code::NORMAL } else { close_code::ERROR };
    let close = Message::Close(Some(CloseFrame { code: clean, reason }));
    // A client that hung up first needs no goodbye.
    let _ = socket.send(close).await;
}

/// Says in words how a shell ended.
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
    fn the_environment_is_read_off_the_protocols() {
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

    #[test]
    fn a_terminal_has_a_size() {
        let order = |cols, rows| Order { cols: Some(cols), rows: Some(rows), ..Order::default() };
        assert!(order(0, 24).size().is_err() && order(80, 1001).size().is_err());
        assert_eq!(order(1000, 1).size().unwrap(), Size { cols: 1000, rows: 1 });
        assert_eq!(Order::default().size().unwrap(), Size { cols: 80, rows: 24 });
    }
}
