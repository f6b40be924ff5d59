//! Sessions: one shell that runs commands one after the other.
//!
//! ```text
//!   exec ──queue──▶ runner ──stdin──▶ sh in the sandbox
//!                     ▲                  │
//!                     └──outputs, marks──┘──▶ the command's log ──▶ logs, follow
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use creel_model::task;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::backend::{Execution, ExecutionEvent, Killer, OutputStream, Program, ShellInput, write};
use crate::error::{ApiError, Result};
use crate::shared::{ServerState, lock};

use super::splitter::Splitter;
use super::{SharedState, parse, resolve};

/// The maximum number of waiting commands or inputs.
const BACKLOG: usize = 256;

/// One shell that runs commands.
#[derive(Debug)]
pub(crate) struct ShellSession {
    name: String,
    commands: Mutex<Vec<Arc<ShellCommand>>>,
    /// Sends messages to the runner.
    messages: mpsc::Sender<RunnerMessage>,
    killer: Killer,
}

/// A message to a runner.
#[derive(Debug)]
enum RunnerMessage {
    Run(Arc<ShellCommand>),
    Input(Vec<u8>),
}

/// One command of a session.
#[derive(Debug)]
pub(super) struct ShellCommand {
    id: String,
    text: String,
    /// The command's output and exit code. Followers are notified of every change.
    pub(super) log: watch::Sender<Log>,
}

/// The output of a command, in sequence, and its exit code.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) chunks: Vec<(OutputStream, Vec<u8>)>,
    pub(super) code: Option<i32>,
}

impl Log {
    /// Returns the text of one output, or of both.
    pub(super) fn text(&self, only: Option<OutputStream>) -> String {
        let wanted = self.chunks.iter().filter(|(stream, _)| only.is_none_or(|one| one == *stream));
        let bytes: Vec<u8> = wanted.flat_map(|(_, chunk)| chunk.iter().copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CommandJson<'a> {
    id: &'a str,
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

impl ShellCommand {
    fn json(&self) -> CommandJson<'_> {
        CommandJson { id: &self.id, command: &self.text, exit_code: self.log.borrow().code }
    }
}

impl ShellSession {
    fn json(&self) -> serde_json::Value {
        let commands = lock(&self.commands);
        let commands: Vec<CommandJson<'_>> = commands.iter().map(|one| one.json()).collect();
        json!({ "sessionId": self.name, "commands": commands })
    }

    fn command(&self, id: &str) -> Result<Arc<ShellCommand>> {
        let missing =
            || ApiError::new(StatusCode::NOT_FOUND, "command not found").with_code("NOT_FOUND");
        lock(&self.commands).iter().find(|one| one.id == id).cloned().ok_or_else(missing)
    }
}

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
    let mut execution = sandbox.run(program).await.map_err(|_| ApiError::no_daemon())?;
    let stdin = execution.stdin().ok_or_else(ApiError::no_daemon)?;
    let (messages, queue) = mpsc::channel(BACKLOG);
    let commands = Mutex::default();
    let killer = execution.killer();
    let session = ShellSession { name: name.clone(), commands, messages, killer };
    lock(&shared.sessions.0).insert((id, name), Arc::new(session));
    let runner = Runner { execution, stdin, waiting: VecDeque::new(), early: Vec::new() };
    let cancel = shared.cancel.clone();
    task::background(shared.tasks.track_future(async move {
        tokio::select! {
            () = runner.run(queue) => {}
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
    let id = sandbox_id(&shared, &key)?;
    let sessions = lock(&shared.sessions.0);
    let own = sessions.iter().filter(|((owner, _), _)| *owner == id);
    let own: Vec<serde_json::Value> = own.map(|(_, session)| session.json()).collect();
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
    session.killer.kill();
    lock(&shared.sessions.0).remove(&(sandbox_id(&shared, &key)?, name));
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
    let command = Arc::new(ShellCommand {
        id: Uuid::new_v4().to_string(),
        text: request.command,
        log: watch::Sender::new(Log::default()),
    });
    lock(&session.commands).push(Arc::clone(&command));
    let ended = |_| ApiError::new(StatusCode::GONE, "session has ended").with_code("SESSION_ENDED");
    session.messages.send(RunnerMessage::Run(Arc::clone(&command))).await.map_err(ended)?;
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
    let gone = |message: &str, code| ApiError::new(StatusCode::GONE, message).with_code(code);
    if session.command(&command)?.log.borrow().code.is_some() {
        return Err(gone("command has completed", "COMMAND_ALREADY_COMPLETED"));
    }
    let data = parse::<SessionInput>(&body)?.data.into_bytes();
    let sent = session.messages.send(RunnerMessage::Input(data)).await;
    sent.map_err(|_| gone("session has ended", "SESSION_ENDED"))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Runs the commands of one session.
struct Runner {
    execution: Execution,
    stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// Commands that wait for their turn.
    waiting: VecDeque<Arc<ShellCommand>>,
    /// Input for a command that has not begun.
    early: Vec<u8>,
}

/// The running command.
struct Current {
    command: Arc<ShellCommand>,
    /// Finds the mark that shows that the command has begun.
    begin: Splitter,
    stdout: Splitter,
    stderr: Splitter,
}

impl Runner {
    async fn run(mut self, mut queue: mpsc::Receiver<RunnerMessage>) {
        // The marks go to the original outputs, whatever a command does to its own.
        let mut alive = write(&mut self.stdin, b"exec 3>&1 4>&2\n").await.is_ok();
        let mut current: Option<Current> = None;
        while alive {
            tokio::select! {
                message = queue.recv() => match message {
                    Some(RunnerMessage::Run(command)) => self.waiting.push_back(command),
                    Some(RunnerMessage::Input(data)) => self.early.extend(data),
                    None => break,
                },
                event = self.execution.events.recv() => match event {
                    Some(ExecutionEvent::Output(stream, chunk)) => {
                        if current.as_mut().is_some_and(|one| one.receive(stream, &chunk)) {
                            current = None;
                            self.early.clear();
                        }
                    }
                    Some(ExecutionEvent::Ended(code)) => {
                        if let Some(one) = current.take() {
                            one.command.end(code);
                        }
                        break;
                    }
                    None => break,
                },
            }
            if current.is_none()
                && let Some(command) = self.waiting.pop_front()
            {
                let (one, text) = Current::new(command);
                alive = write(&mut self.stdin, text.as_bytes()).await.is_ok();
                current = Some(one);
            }
            if !self.early.is_empty() && current.as_ref().is_some_and(Current::has_begun) {
                let data = std::mem::take(&mut self.early);
                alive = write(&mut self.stdin, &data).await.is_ok();
            }
        }
        for left in current.map(|one| one.command).into_iter().chain(self.waiting) {
            left.end(-1);
        }
    }
}

impl Current {
    /// Prepares a command, and returns the text for the shell.
    fn new(command: Arc<ShellCommand>) -> (Self, String) {
        let mark = Uuid::new_v4().simple().to_string();
        // The shell reads this as one unit before it reports that the command has begun. So input
        // sent after that is read only by the command.
        let text = format!(
            "{{ printf '\\036b{mark} 0\\036' >&3\n{}\n}}; printf '\\036{mark} %s\\036' \"$?\" >&3; \
             printf '\\036{mark} 0\\036' >&4\n",
            command.text
        );
        let begin = Splitter::new(&format!("b{mark}"));
        let (stdout, stderr) = (Splitter::new(&mark), Splitter::new(&mark));
        (Self { command, begin, stdout, stderr }, text)
    }

    fn has_begun(&self) -> bool {
        self.begin.code().is_some()
    }

    /// Takes a piece of output, and returns whether the command has ended.
    fn receive(&mut self, stream: OutputStream, chunk: &[u8]) -> bool {
        let output = match stream {
            OutputStream::Stdout if self.has_begun() => self.stdout.feed(chunk),
            OutputStream::Stdout => {
                let mut output = self.begin.feed(chunk);
                let rest = self.begin.rest();
                output.extend(self.stdout.feed(&rest));
                output
            }
            OutputStream::Stderr => self.stderr.feed(chunk),
        };
        if !output.is_empty() {
            self.command.log.send_modify(|log| log.chunks.push((stream, output)));
        }
        match (self.stdout.code(), self.stderr.code()) {
            (Some(code), Some(_)) => {
                self.command.end(code);
                true
            }
            _ => false,
        }
    }
}

impl ShellCommand {
    fn end(&self, code: i32) {
        self.log.send_modify(|log| {
            log.code.get_or_insert(code);
        });
    }
}
