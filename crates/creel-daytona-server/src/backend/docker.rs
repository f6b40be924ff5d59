//! A container as a sandbox.
//!
//! The supervisor creates the container. Commands in it run through the `docker` program, which
//! supports every transport to an engine. Stopping a sandbox deletes its container: unlike in the
//! real service, the files written in it are then gone.

use std::io;
use std::process::Stdio;
use std::sync::Arc;

use creel_core::scope::{Held, Request, Supervisor};
use creel_model::provider::{ContainerSpec, Spec};
use creel_model::task;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use crate::sandbox::Pairs;

use super::execution::{BACKLOG, Execution, ExecutionEvent, OutputStream, Program, ShellInput};
use super::shell::{SHELL, quoted};
use super::terminal::{Terminal, TerminalSize};

/// The variable that identifies a program's processes in the container.
const MARK: &str = "CREEL_EXEC";
/// The largest piece of output that is passed on.
const CHUNK: usize = 16 * 1024;

/// A container.
#[derive(Debug)]
pub(crate) struct DockerBody {
    supervisor: Supervisor,
    /// The engine's address.
    host: String,
    /// The image that it runs.
    image: String,
    /// The sandbox's environment.
    env: Arc<Pairs>,
    /// The container, while it runs.
    container: Mutex<Option<Held>>,
}

impl DockerBody {
    /// Prepares a container.
    pub(super) fn new(supervisor: &Supervisor, host: &str, image: &str, env: &Arc<Pairs>) -> Self {
        Self {
            supervisor: supervisor.clone(),
            host: host.to_owned(),
            image: image.to_owned(),
            env: Arc::clone(env),
            container: Mutex::new(None),
        }
    }

    /// Starts the container, unless it is running.
    pub(super) async fn start(&self) -> Result<(), String> {
        let mut container = self.container.lock().await;
        if container.is_some() {
            return Ok(());
        }
        let spec = ContainerSpec {
            image: self.image.clone(),
            command: ["sleep", "2147483647"].map(str::to_owned).to_vec(),
            env: self.env.as_ref().clone(),
            ..ContainerSpec::default()
        };
        let request = Request::new(creel_docker::NAME, Spec::Container(spec));
        let held = self.supervisor.create(request).await.map_err(|error| error.to_string())?;
        *container = Some(held);
        Ok(())
    }

    /// Removes the container.
    pub(super) async fn stop(&self) -> Result<(), String> {
        let Some(held) = self.container.lock().await.take() else { return Ok(()) };
        self.supervisor.release(held).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Removes the container, which is all there is.
    pub(super) async fn destroy(&self) -> Result<(), String> {
        self.stop().await
    }

    /// Leaves the release to the supervisor.
    pub(super) async fn forget(&self) {
        if let Some(held) = self.container.lock().await.take() {
            held.forget();
        }
    }

    async fn id(&self) -> io::Result<String> {
        let container = self.container.lock().await;
        let held = container.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(held.id.clone())
    }

    fn docker(&self) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", &self.host]).kill_on_drop(true);
        command
    }

    /// Starts a program.
    pub(super) async fn run(&self, program: Program) -> io::Result<Execution> {
        let (id, mark) = (self.id().await?, Uuid::new_v4().simple().to_string());
        let mut command = self.docker();
        command.args(["exec", "-i"]);
        add_context(&mut command, &program, &mark);
        let merged = if program.merged { "2>&1" } else { "" };
        command.args([&id, "sh", "-c", &format!("exec {SHELL} {merged}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let stdin = match program.script {
            ShellInput::Open | ShellInput::Terminal => Some(stdin),
            ShellInput::Fed(text) => {
                task::background(async move {
                    // A command that ends early closes the pipe; its exit code shows the rest.
                    let _ = stdin.write_all(text.as_bytes()).await;
                });
                None
            }
        };
        let (sender, events) = mpsc::channel(BACKLOG);
        let (kill, killed) = mpsc::channel(1);
        task::background(pump(child, sender, killed, self.killing(&id, &mark)));
        let stdin = stdin.map(|stdin| Box::pin(stdin) as _);
        Ok(Execution { events, stdin, kill })
    }

    /// Starts an interactive shell on a terminal.
    ///
    /// The `docker` program gets the terminal as its own, so that it is notified of a new size.
    pub(super) async fn run_on(
        &self,
        program: Program,
        terminal: &Terminal,
    ) -> io::Result<Execution> {
        let (id, mark) = (self.id().await?, terminal.mark());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "docker", "--host", &self.host, "exec", "-it"]);
        add_context(&mut command, &program, mark);
        let shell = format!("{} 2>/dev/null; exec {SHELL} -i -l", set_size(terminal.size()?));
        command.args([&id, "sh", "-c", &shell]).kill_on_drop(true);
        command.stdin(terminal.stdio()?).stdout(terminal.stdio()?).stderr(terminal.stdio()?);
        let child = command.spawn()?;
        let (sender, events) = mpsc::channel(BACKLOG);
        let (kill, killed) = mpsc::channel(1);
        task::background(await_end(child, sender, killed, self.killing(&id, mark)));
        Ok(Execution { events, stdin: None, kill })
    }

    /// Sets the size of the terminal in the container, and waits for that. The `docker` program
    /// forwards a new size too, but only after a delay.
    pub(super) async fn resize(&self, terminal: &Terminal) -> io::Result<()> {
        let (mark, set_size) = (terminal.mark(), set_size(terminal.size()?));
        let script = format!(
            "for one in /proc/[0-9]*; do grep -q {MARK}={mark} $one/environ 2>/dev/null \
             && {set_size} < $one/fd/0 && break; done; true"
        );
        self.capture(&script, b"").await.map(drop)
    }

    /// Returns the command that kills a marked program in the container.
    fn killing(&self, id: &str, mark: &str) -> Command {
        let script = format!(
            "for one in /proc/[0-9]*; do grep -q {MARK}={mark} $one/environ 2>/dev/null \
             && kill -9 ${{one#/proc/}}; done"
        );
        let mut command = self.docker();
        command.args(["exec", id, "sh", "-c", &script]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs a line of shell with this input. Returns its output, or its standard error as an error.
    pub(super) async fn capture(&self, line: &str, input: &[u8]) -> io::Result<Vec<u8>> {
        let id = self.id().await?;
        let mut command = self.docker();
        command.args(["exec", "-i", &id, "sh", "-c", line]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let input = input.to_vec();
        task::background(async move {
            // The command's exit code shows what could not be written.
            let _ = stdin.write_all(&input).await;
        });
        let output = child.wait_with_output().await?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let absent = message.contains("No such file");
        let kind = if absent { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
        Err(io::Error::new(kind, message))
    }
}

/// Quotes a path, so that it is never taken for an option.
pub(super) fn quoted_path(path: &str) -> String {
    match path.starts_with('/') {
        true => quoted(path),
        false => quoted(&format!("./{path}")),
    }
}

/// Returns the line of shell that sets the size of a terminal.
fn set_size(size: TerminalSize) -> String {
    format!("stty rows {} cols {}", size.rows, size.cols)
}

/// Sets the environment and the working directory of a program.
fn add_context(command: &mut Command, program: &Program, mark: &str) {
    command.arg("-e").arg(format!("{MARK}={mark}"));
    for (name, value) in &program.env {
        command.arg("-e").arg(format!("{name}={value}"));
    }
    if let Some(cwd) = &program.cwd {
        command.args(["-w", cwd]);
    }
}

/// Waits for the end of a program whose output is read elsewhere.
async fn await_end(
    mut child: Child,
    events: mpsc::Sender<ExecutionEvent>,
    mut killed: mpsc::Receiver<()>,
    mut killing: Command,
) {
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            Some(()) = killed.recv() => {
                // If the container is gone, the program is gone with it.
                let _ = killing.status().await;
            }
        }
    };
    if let Ok(status) = status {
        // The caller may be gone.
        let _ = events.send(ExecutionEvent::Ended(status.code().unwrap_or(-1))).await;
    }
}

async fn pump(
    mut child: Child,
    events: mpsc::Sender<ExecutionEvent>,
    mut killed: mpsc::Receiver<()>,
    mut killing: Command,
) {
    let outputs = (child.stdout.take(), child.stderr.take());
    let reading = async {
        tokio::join!(
            copy(outputs.0, OutputStream::Stdout, &events),
            copy(outputs.1, OutputStream::Stderr, &events)
        );
    };
    tokio::pin!(reading);
    loop {
        tokio::select! {
            () = &mut reading => break,
            Some(()) = killed.recv() => {
                // If the container is gone, the program is gone with it.
                let _ = killing.status().await;
            }
        }
    }
    if let Ok(status) = child.wait().await {
        // docker exits with 126 if the program or the directory does not exist.
        let code = match status.code() {
            Some(126) | None => -1,
            Some(code) => code,
        };
        // The caller may be gone.
        let _ = events.send(ExecutionEvent::Ended(code)).await;
    }
}

async fn copy(
    output: Option<impl AsyncRead + Unpin>,
    stream: OutputStream,
    events: &mpsc::Sender<ExecutionEvent>,
) {
    let Some(mut output) = output else { return };
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        let chunk = bytes::Bytes::copy_from_slice(&buffer[..count]);
        // The caller may be gone. The program continues, as in the real service.
        let _ = events.send(ExecutionEvent::Output(stream, chunk)).await;
    }
}
