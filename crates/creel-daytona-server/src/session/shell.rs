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

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::json;
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::splitter::Splitter;
use crate::backend::{Execution, ExecutionEvent, Killer, OutputStream, write};
use crate::error::{ApiError, Result};
use crate::lock::lock;

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
pub(crate) struct ShellCommand {
    pub(crate) id: String,
    text: String,
    /// The command's output and exit code. Followers are notified of every change.
    pub(crate) log: watch::Sender<Log>,
}

/// The output of a command, in sequence, and its exit code.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) chunks: Vec<(OutputStream, Vec<u8>)>,
    pub(crate) code: Option<i32>,
}

impl Log {
    /// Returns the text of one output, or of both.
    pub(crate) fn text(&self, only: Option<OutputStream>) -> String {
        let wanted = self.chunks.iter().filter(|(stream, _)| only.is_none_or(|one| one == *stream));
        let bytes: Vec<u8> = wanted.flat_map(|(_, chunk)| chunk.iter().copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A command as the API shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandJson<'a> {
    id: &'a str,
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

impl ShellCommand {
    /// Returns the command as the API shows it.
    pub(crate) fn json(&self) -> CommandJson<'_> {
        CommandJson { id: &self.id, command: &self.text, exit_code: self.log.borrow().code }
    }
}

impl ShellSession {
    /// Creates a session on a running shell, with the runner of its commands.
    pub(crate) fn new(name: &str, mut execution: Execution) -> Result<(Self, Runner)> {
        let stdin = execution.stdin().ok_or_else(ApiError::no_daemon)?;
        let (messages, queue) = mpsc::channel(BACKLOG);
        let (name, commands, killer) = (name.to_owned(), Mutex::default(), execution.killer());
        let (waiting, early) = (VecDeque::new(), Vec::new());
        let runner = Runner { queue, execution, stdin, waiting, early };
        Ok((Self { name, commands, messages, killer }, runner))
    }

    /// Returns the session as the API shows it.
    pub(crate) fn json(&self) -> serde_json::Value {
        let commands = lock(&self.commands);
        let commands: Vec<CommandJson<'_>> = commands.iter().map(|one| one.json()).collect();
        json!({ "sessionId": self.name, "commands": commands })
    }

    /// Finds a command.
    pub(crate) fn command(&self, id: &str) -> Result<Arc<ShellCommand>> {
        let missing =
            || ApiError::new(StatusCode::NOT_FOUND, "command not found").with_code("NOT_FOUND");
        lock(&self.commands).iter().find(|one| one.id == id).cloned().ok_or_else(missing)
    }

    /// Queues a command.
    pub(crate) async fn run(&self, text: String) -> Result<Arc<ShellCommand>> {
        let command = Arc::new(ShellCommand {
            id: Uuid::new_v4().to_string(),
            text,
            log: watch::Sender::new(Log::default()),
        });
        lock(&self.commands).push(Arc::clone(&command));
        self.send(RunnerMessage::Run(Arc::clone(&command))).await?;
        Ok(command)
    }

    /// Queues input for the running command.
    pub(crate) async fn input(&self, data: Vec<u8>) -> Result<()> {
        self.send(RunnerMessage::Input(data)).await
    }

    async fn send(&self, message: RunnerMessage) -> Result<()> {
        let ended =
            |_| ApiError::new(StatusCode::GONE, "session has ended").with_code("SESSION_ENDED");
        self.messages.send(message).await.map_err(ended)
    }

    /// Kills the shell and the running command.
    pub(crate) fn kill(&self) {
        self.killer.kill();
    }
}

/// Runs the commands of one session.
pub(crate) struct Runner {
    /// The messages of the session.
    queue: mpsc::Receiver<RunnerMessage>,
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
    /// Runs the commands, until the session or the shell has ended.
    pub(crate) async fn run(mut self) {
        // The marks go to the original outputs, whatever a command does to its own.
        let mut alive = write(&mut self.stdin, b"exec 3>&1 4>&2\n").await.is_ok();
        let mut current: Option<Current> = None;
        while alive {
            tokio::select! {
                message = self.queue.recv() => match message {
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
