//! Process sandboxes: a directory and a process tree on this machine.
//!
//! ```text
//!   <directory>/.creel/     creel's own: the program, the holder's socket
//!   <directory>/home/       HOME
//!   <directory>/tmp/        TMPDIR
//!   <directory>/workspace/  where a relative workspace path begins
//! ```
//!
//! If the disk has a fixed size, all directories but the first are below
//! `<directory>/disk/`, where the disk is mounted. Creel's own files are not on
//! that disk, so a run whose agent has filled it still ends with its outcome.
//!
//! The workload of the tree is `creel-bridge hold`, with its own environment and
//! none of our variables. It starts every command, over its socket. So all
//! commands are in the tree and end with it, whatever they do to escape. The
//! tree's own holder watches the lease, so `hold` does not need to.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use creel_bridge::exec::ExecRequest;
use creel_bridge::file;
use creel_model::provider::{
    ErrorClass, Kind, Limits, ProcessSpec, Provider, ProviderError, ProviderName, Spec, Usage,
};
use creel_model::sandbox::{
    BridgeProgram, CREEL_DIRECTORY, ExecResponse, PartMaker, Sandbox, SandboxError, SandboxLayout,
    SandboxOptions, SandboxPart, SandboxParts, SandboxProvider, SandboxStatus, Transport,
    WORKSPACE, no_sandbox, program_name, with_transport,
};
use creel_model::task;
use rustix::fs::{CWD, Mode, OFlags, openat};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::RESOURCE_VARIABLE;
use super::provider::ProcessProvider;
use super::state::io_failure;
use super::tree_record::ProcessEnding;

/// The holder's socket, in creel's own directory.
const SOCKET: &str = "hold.sock";
/// The lease that `hold` watches: ten years, so in effect none.
const ENDLESS_MS: &str = "315360000000";
/// The maximum number of bytes to read at once.
const READ_SIZE: usize = 64 * 1024;
/// How long a holder may take until it listens.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// The pause between two checks whether it does.
const START_PAUSE: Duration = Duration::from_millis(10);

/// The sandboxes on this machine.
#[derive(Debug, Clone)]
pub struct ProcessSandboxes(ProcessProvider);

impl ProcessSandboxes {
    /// Makes sandboxes with a provider.
    pub fn new(provider: ProcessProvider) -> Self {
        Self(provider)
    }

    /// Returns the directories of a sandbox.
    fn home(&self, directory: &str) -> Result<SandboxHome, ProviderError> {
        let wrong = || no_sandbox(crate::NAME, "its directory is not on record");
        let root = self.0.directory(directory).ok_or_else(wrong)?;
        let work = self.0.work_directory(directory).ok_or_else(wrong)?;
        Ok(SandboxHome { root, work })
    }
}

#[async_trait]
impl SandboxProvider for ProcessSandboxes {
    fn name(&self) -> ProviderName {
        crate::NAME
    }

    async fn create(
        &self,
        options: &SandboxOptions,
        program: &BridgeProgram,
        parts: &mut dyn PartMaker,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        options.refuse(crate::NAME, &["image", "network", "snapshot"])?;
        let name = program_name(program);
        let directory = options.disk.map_or(Spec::Directory, |bytes| Spec::Disk { bytes });
        let directory = parts.make(SandboxPart::new(directory)).await?;
        let home = self.home(&directory)?;
        let installed = {
            let (home, name, bytes) = (home.clone(), name.clone(), program.bytes);
            task::blocking(move || install(&home, &name, bytes)).await
        };
        installed.map_err(|error| io_failure("furnish a directory", &error))?;
        let layout = home.layout(&name, options.env.clone());
        let spec = tree_spec(&home, &layout.bridge_path, options.limits.clone());
        let tree = parts.make(SandboxPart::new(Spec::Process(spec))).await?;
        let transport = ProcessTransport { provider: self.0.clone(), tree, home };
        transport.until_ready().await?;
        Ok(with_transport(transport, layout))
    }

    async fn open(
        &self,
        parts: SandboxParts,
        _: &BridgeProgram,
        env: BTreeMap<String, SecretString>,
    ) -> Result<Arc<dyn Sandbox>, ProviderError> {
        let home = self.home(parts.directory.as_deref().unwrap_or_default())?;
        let layout = home.layout(&parts.program, env);
        let transport = ProcessTransport { provider: self.0.clone(), tree: parts.object, home };
        Ok(with_transport(transport, layout))
    }
}

/// The transport to a process sandbox.
#[derive(Debug)]
struct ProcessTransport {
    provider: ProcessProvider,
    /// The id of the process tree.
    tree: String,
    /// The directories of the sandbox.
    home: SandboxHome,
}

/// The directories of a process sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SandboxHome {
    /// The directory that holds everything, including creel's own files.
    root: PathBuf,
    /// The directory for the workload's files: the same directory, or its disk.
    work: PathBuf,
}

impl SandboxHome {
    /// Returns the layout for the commands in it.
    fn layout(&self, program: &str, env: BTreeMap<String, SecretString>) -> SandboxLayout {
        let (root, work) = (self.root.display().to_string(), self.work.display().to_string());
        SandboxLayout::apart(&root, &work, program, env)
    }
}

/// Creates the directories of a sandbox, and installs the program.
///
/// Each sandbox has its own copy. A process tree is no security boundary, so one sandbox could
/// change a shared program for the others.
fn install(home: &SandboxHome, name: &str, program: &[u8]) -> io::Result<()> {
    let own = home.root.join(CREEL_DIRECTORY);
    let theirs = ["home", "tmp", WORKSPACE].map(|name| home.work.join(name));
    for directory in std::iter::once(&own).chain(&theirs) {
        DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
    }
    file::put(&own.join(name), 0o700, program)
}

/// Returns the spec of the sandbox's process tree.
fn tree_spec(home: &SandboxHome, program: &str, limits: Limits) -> ProcessSpec {
    let command =
        [program, "hold", "--lease-file", "lease", "--lease-ms", ENDLESS_MS, "--socket", SOCKET];
    let below = |name: &str| home.work.join(name).display().to_string();
    ProcessSpec {
        command: command.map(str::to_owned).to_vec(),
        env: [("HOME", "home"), ("TMPDIR", "tmp")]
            .map(|(name, folder)| (name.to_owned(), below(folder)))
            .into(),
        directory: Some(home.root.join(CREEL_DIRECTORY)),
        limits,
    }
}

impl ProcessTransport {
    /// Waits until the holder listens.
    async fn until_ready(&self) -> Result<(), ProviderError> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            match self.connect().await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    return Err(self.broken("reach the holder", &error));
                }
                Err(_) if !matches!(self.status().await?, SandboxStatus::Running) => {
                    let message = "the holder ended at its start".to_owned();
                    return Err(self.failure("reach the holder", ErrorClass::Invalid, message));
                }
                Err(_) => tokio::time::sleep(START_PAUSE).await,
            }
        }
    }

    /// Connects through the directory's handle, because the length of a socket address is limited.
    async fn connect(&self) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, self.home.root.join(CREEL_DIRECTORY), flags, Mode::empty())?;
        UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())).await
    }

    async fn exchange(
        &self,
        request: &ExecRequest,
        response: &mut ExecResponse<'_>,
    ) -> io::Result<()> {
        let mut stream = self.connect().await?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut buffer = vec![0; READ_SIZE];
        // The connection stays open in both directions, because closing it ends the command.
        while !response.is_finished() {
            match stream.read(&mut buffer).await? {
                0 => break,
                count => response.feed(&buffer[..count]),
            }
        }
        Ok(())
    }

    fn failure(&self, operation: &str, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: crate::NAME,
            operation: format!("{operation} of process {}", self.tree),
            message,
            class,
            retry_after: None,
        }
    }

    fn broken(&self, operation: &str, error: &io::Error) -> ProviderError {
        self.failure(operation, ErrorClass::Unreachable, error.to_string())
    }
}

#[async_trait]
impl Transport for ProcessTransport {
    fn provider(&self) -> ProviderName {
        crate::NAME
    }

    fn id(&self) -> &str {
        &self.tree
    }

    async fn carry(
        &self,
        _: &SandboxLayout,
        mut request: ExecRequest,
        response: &mut ExecResponse<'_>,
    ) -> Result<(), ProviderError> {
        // This variable identifies the processes of the tree, so a request must not override it.
        request.env.remove(RESOURCE_VARIABLE);
        // Processes that were frozen when they were killed keep the connection open.
        tokio::select! {
            biased;
            exchanged = self.exchange(&request, response) => {
                exchanged.map_err(|error| self.broken("speak with the holder", &error))
            }
            () = self.provider.until_holder_ends(&self.tree) => {
                let message = "the tree has lost its holder".to_owned();
                Err(self.failure("speak with the holder", ErrorClass::Unreachable, message))
            }
        }
    }

    async fn status(&self) -> Result<SandboxStatus, ProviderError> {
        let Some(seen) = self.provider.inspect(Kind::Process, &self.tree).await? else {
            return Ok(SandboxStatus::Absent);
        };
        if seen.is_running() {
            return Ok(match self.provider.has_lost_holder(&self.tree).await {
                true => SandboxStatus::Resting("ending, because its holder was killed".to_owned()),
                false => SandboxStatus::Running,
            });
        }
        Ok(SandboxStatus::Resting(match self.provider.ending(&self.tree)? {
            Some(ProcessEnding::LeaseExpired) => {
                "ended, because its lease was not renewed".to_owned()
            }
            Some(ProcessEnding::Code(code)) => format!("{} with code {code}", seen.state),
            Some(ProcessEnding::Signal(signal)) => format!("{} by signal {signal}", seen.state),
            Some(ProcessEnding::InitDied) | None => seen.state,
        }))
    }

    async fn start(&self, layout: &SandboxLayout) -> Result<(), ProviderError> {
        let spec = tree_spec(&self.home, &layout.bridge_path, Limits::default());
        self.provider.restart(&self.tree, &spec).await?;
        self.until_ready().await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.provider.stop(Kind::Process, &self.tree, patience).await?;
        // A client that connects must see at once that there is no listener.
        let _ = fs::remove_file(self.home.root.join(CREEL_DIRECTORY).join(SOCKET));
        Ok(())
    }

    async fn wake(&self) -> Result<bool, ProviderError> {
        self.provider.wake(&self.tree).await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.provider.usage(&self.tree).await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        Provider::renew(&self.provider, Kind::Process, &self.tree).await
    }
}
