//! Terminals: interactive shells.
//!
//! ```text
//!   client ──typed──▶ terminal ◀──▶ shell in the sandbox
//!     ▲                  │
//!     └──broadcast──── pump ──▶ how it ended
//! ```

use std::io;
use std::sync::Mutex;

use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, broadcast, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backend::{
    Execution, ExecutionEvent, Killer, Program, SandboxBody, ShellInput, Terminal, TerminalSize,
};
use crate::error::{ApiError, Result};
use crate::lock::lock;
use crate::moment::Moment;
use crate::sandbox::Pairs;

/// The number of pieces of output that a client may lag behind.
const BACKLOG: usize = 1024;
/// The largest piece of output.
const CHUNK: usize = 16 * 1024;
/// The code of a shell that was killed.
pub(crate) const KILLED: i32 = 137;
/// The maximum number of columns or rows.
const LARGEST: u16 = 1000;

/// One terminal.
#[derive(Debug)]
pub(crate) struct Pty {
    pub(crate) sandbox: Uuid,
    pub(crate) request: PtyRequest,
    size: Mutex<TerminalSize>,
    created_at: Moment,
    terminal: Terminal,
    /// The output of the terminal, for its clients.
    pub(crate) output: broadcast::Sender<Bytes>,
    /// The exit code of the shell, once it has ended.
    pub(crate) ended: watch::Sender<Option<i32>>,
    /// Ends the shell; empty until it is started.
    shell: OnceCell<Killer>,
}

/// A request for a terminal.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PtyRequest {
    #[serde(default)]
    pub(crate) id: String,
    pub(crate) cwd: Option<String>,
    pub(crate) envs: Option<Pairs>,
    pub(crate) cols: Option<u16>,
    pub(crate) rows: Option<u16>,
    #[serde(default)]
    pub(crate) lazy_start: bool,
}

impl PtyRequest {
    fn size(&self) -> Result<TerminalSize> {
        let size = TerminalSize { cols: self.cols.unwrap_or(80), rows: self.rows.unwrap_or(24) };
        checked_size(size)
    }
}

/// Refuses a size that the service does not allow.
pub(crate) fn checked_size(size: TerminalSize) -> Result<TerminalSize> {
    let fits = |length: u16| (1..=LARGEST).contains(&length);
    let wrong = || {
        let message = format!("cols and rows must be between 1 and {LARGEST}");
        ApiError::invalid(message).with_code("BAD_REQUEST")
    };
    if fits(size.cols) && fits(size.rows) { Ok(size) } else { Err(wrong()) }
}

impl Pty {
    /// Opens a terminal without a shell.
    pub(crate) fn open(sandbox: Uuid, request: PtyRequest) -> Result<Self> {
        let size = request.size()?;
        if request.id.is_empty() {
            return Err(ApiError::invalid("session ID is required").with_code("BAD_REQUEST"));
        }
        let failed = |error: io::Error| {
            let message = format!("failed to start PTY session: {error}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        };
        Ok(Self {
            sandbox,
            size: Mutex::new(size),
            created_at: Moment::now(),
            terminal: Terminal::open(size).map_err(failed)?,
            output: broadcast::Sender::new(BACKLOG),
            ended: watch::Sender::new(None),
            shell: OnceCell::new(),
            request,
        })
    }

    /// Starts the shell. Returns `None` if it was already started.
    pub(crate) async fn start(&self, body: &SandboxBody) -> Result<Option<Execution>> {
        let mut started = None;
        let start = async {
            let mut env = self.request.envs.clone().unwrap_or_default();
            env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
            let cwd = self.request.cwd.clone().filter(|cwd| !cwd.is_empty());
            let script = ShellInput::Terminal;
            let program = Program { script, cwd, env, merged: true };
            let execution = body.run_on(program, Some(&self.terminal)).await;
            let execution = execution.map_err(|_| ApiError::no_daemon())?;
            let killer = execution.killer();
            started = Some(execution);
            Ok(killer)
        };
        self.shell.get_or_try_init(|| start).await?;
        Ok(started)
    }

    /// Passes on the output, until the shell has ended. Returns its exit code.
    pub(crate) async fn pump(&self, mut execution: Execution, cancel: &CancellationToken) -> i32 {
        let mut buffer = vec![0; CHUNK];
        let mut killed = self.ended.subscribe();
        let code = loop {
            tokio::select! {
                read = self.terminal.read(&mut buffer) => match read {
                    Ok(count) => self.show(&buffer[..count]),
                    Err(_) => break -1,
                },
                event = execution.events.recv() => match event {
                    Some(ExecutionEvent::Output(_, chunk)) => self.show(&chunk),
                    Some(ExecutionEvent::Ended(code)) => break code,
                    None => break KILLED,
                },
                code = exit_code(&mut killed) => break code,
                () = cancel.cancelled() => break KILLED,
            }
        };
        while let Some(count) = self.terminal.read_now(&mut buffer) {
            self.show(&buffer[..count]);
        }
        code
    }

    /// Types something in.
    pub(crate) async fn type_in(&self, typed: &[u8]) {
        // If writing fails, the terminal has ended, which is reported separately.
        let _ = self.terminal.write(typed).await;
    }

    fn show(&self, chunk: &[u8]) {
        // There may be no client. Output without a client is not kept.
        let _ = self.output.send(Bytes::copy_from_slice(chunk));
    }

    /// Kills the shell, and reports its end.
    pub(crate) fn kill(&self) {
        if let Some(shell) = self.shell.get() {
            shell.kill();
        }
        self.ended.send_replace(Some(KILLED));
    }

    /// Sets the size of the terminal, also for programs in the sandbox.
    pub(crate) async fn resize(&self, size: TerminalSize, body: &SandboxBody) -> io::Result<()> {
        self.terminal.resize(size)?;
        body.resize(&self.terminal).await?;
        *lock(&self.size) = size;
        Ok(())
    }

    /// Returns the terminal as the API shows it.
    pub(crate) fn json(&self) -> Value {
        let size = *lock(&self.size);
        json!({
            "id": self.request.id,
            "cwd": self.request.cwd.as_deref().unwrap_or_default(),
            "envs": self.request.envs.clone().unwrap_or_default(),
            "cols": size.cols,
            "rows": size.rows,
            "createdAt": self.created_at,
            "active": self.shell.initialized() && self.ended.borrow().is_none(),
            "lazyStart": self.request.lazy_start,
        })
    }
}

/// Waits for the end of a shell, and returns its code.
pub(crate) async fn exit_code(ended: &mut watch::Receiver<Option<i32>>) -> i32 {
    let ended = ended.wait_for(Option::is_some).await;
    ended.ok().and_then(|code| *code).unwrap_or(KILLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_a_size() {
        let request =
            |cols, rows| PtyRequest { cols: Some(cols), rows: Some(rows), ..PtyRequest::default() };
        assert!(request(0, 24).size().is_err() && request(80, 1001).size().is_err());
        assert_eq!(request(1000, 1).size().unwrap(), TerminalSize { cols: 1000, rows: 1 });
        assert_eq!(PtyRequest::default().size().unwrap(), TerminalSize { cols: 80, rows: 24 });
    }
}
