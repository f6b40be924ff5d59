//! The backend of a sandbox: nothing, a process tree, or a container.
//!
//! Everything is created through the supervisor's ledger. After the server is killed, its watchdog
//! or the next reconcile finds everything that is left. A process tree needs neither: it reads its
//! commands from a pipe that only the server holds open, and ends when that pipe does.

mod docker;
mod execution;
mod files;
mod process;
mod shell;
mod terminal;
mod tree;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use creel_core::scope::Supervisor;
use tokio::task::JoinHandle;

use crate::sandbox::SandboxRecord;
use crate::settings::SandboxHost;

pub(crate) use docker::DockerBody;
pub(crate) use execution::{
    Execution, ExecutionEvent, Killer, OutputStream, Program, ShellInput, write,
};
pub(crate) use files::joined;
pub(crate) use process::ProcessBody;
pub(crate) use shell::quoted;
pub(crate) use terminal::{Terminal, TerminalSize};
pub(crate) use tree::Only;

/// The interval between lease renewals, well within the hour that a lease lasts.
const RENEWAL: Duration = Duration::from_secs(15 * 60);

/// The home directory in a sandbox.
pub(crate) const HOME: &str = "/home/daytona";

/// The backend of one sandbox.
#[derive(Debug)]
pub(crate) enum SandboxBody {
    /// A directory and a process tree.
    Process(ProcessBody),
    /// A container.
    Docker(DockerBody),
}

impl SandboxBody {
    /// Creates the backend of a sandbox. A hollow sandbox has none.
    pub(crate) async fn make(
        backend: &SandboxHost,
        sandbox: &SandboxRecord,
    ) -> Result<Option<Self>, String> {
        match backend {
            SandboxHost::Hollow => Ok(None),
            SandboxHost::Process { supervisor, provider } => {
                let created = ProcessBody::make(supervisor, provider, &sandbox.env).await;
                created.map(|body| Some(Self::Process(body)))
            }
            SandboxHost::Docker { supervisor, host, image } => {
                let image = image.clone().or_else(|| sandbox.snapshot.clone());
                let image = image.unwrap_or_else(|| image_of_build(sandbox));
                let body = DockerBody::new(supervisor, host, &image, &sandbox.env);
                Ok(Some(Self::Docker(body)))
            }
        }
    }

    /// Starts the process tree or the container, unless it is running.
    pub(crate) async fn start(&self) -> Result<(), String> {
        match self {
            Self::Process(body) => body.start().await,
            Self::Docker(body) => body.start().await,
        }
    }

    /// Ends the process tree and keeps its directory, or removes the container.
    pub(crate) async fn stop(&self) -> Result<(), String> {
        match self {
            Self::Process(body) => body.stop().await,
            Self::Docker(body) => body.stop().await,
        }
    }

    /// Removes the process tree with its directory, or the container.
    pub(crate) async fn destroy(&self) -> Result<(), String> {
        match self {
            Self::Process(body) => body.destroy().await,
            Self::Docker(body) => body.destroy().await,
        }
    }

    /// Leaves the release to the supervisor, which releases everything at once.
    async fn forget(&self) {
        match self {
            Self::Process(body) => body.forget().await,
            Self::Docker(body) => body.forget().await,
        }
    }

    /// Starts a program in the sandbox.
    pub(crate) async fn run(&self, program: Program) -> io::Result<Execution> {
        self.run_on(program, None).await
    }

    /// Starts a program in the sandbox, on a terminal if its script comes from one.
    pub(crate) async fn run_on(
        &self,
        program: Program,
        terminal: Option<&Terminal>,
    ) -> io::Result<Execution> {
        match (self, terminal) {
            (Self::Process(body), terminal) => body.run(program, terminal).await,
            (Self::Docker(body), Some(terminal)) => body.run_on(program, terminal).await,
            (Self::Docker(body), None) => body.run(program).await,
        }
    }

    /// Ensures that programs on a terminal know its current size.
    pub(crate) async fn resize(&self, terminal: &Terminal) -> io::Result<()> {
        match self {
            Self::Process(_) => Ok(()),
            Self::Docker(body) => body.resize(terminal).await,
        }
    }

    /// Returns a path of the API as programs in the sandbox name it.
    pub(crate) fn inside(&self, path: &str) -> String {
        match self {
            Self::Process(body) => body.host_path(path).display().to_string(),
            Self::Docker(_) => path.to_owned(),
        }
    }

    /// Returns the home directory as programs in the sandbox name it.
    pub(crate) fn home(&self) -> String {
        match self {
            Self::Process(body) => body.home(),
            Self::Docker(_) => "/".to_owned(),
        }
    }
}

/// Returns the image of a build with one line, `FROM image`.
fn image_of_build(sandbox: &SandboxRecord) -> String {
    let build = sandbox.build.as_ref().and_then(|build| build["dockerfileContent"].as_str());
    let from = build.unwrap_or_default().lines().find_map(|line| line.strip_prefix("FROM "));
    from.unwrap_or_default().trim().to_owned()
}

/// Renews the leases of the sandboxes' backends, until the handle is aborted.
pub(crate) fn keep_alive(backend: &SandboxHost) -> Option<JoinHandle<()>> {
    supervisor_of(backend).map(|supervisor| supervisor.keep_alive(RENEWAL))
}

fn supervisor_of(backend: &SandboxHost) -> Option<&Supervisor> {
    match backend {
        SandboxHost::Hollow => None,
        SandboxHost::Process { supervisor, .. } | SandboxHost::Docker { supervisor, .. } => {
            Some(supervisor)
        }
    }
}

/// Ends the backends of all sandboxes, and verifies it.
pub(crate) async fn end_all(backend: &SandboxHost, bodies: Vec<Arc<SandboxBody>>) {
    for body in bodies {
        body.forget().await;
    }
    let Some(supervisor) = supervisor_of(backend) else { return };
    match supervisor.release_all().await {
        Ok(status) if status.is_settled() => {}
        Ok(status) => tracing::warn!(items = ?status.items, "not everything is verified gone"),
        Err(error) => tracing::warn!(%error, "the ledger could not be used"),
    }
}
