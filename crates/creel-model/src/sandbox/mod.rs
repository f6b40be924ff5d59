//! Sandboxes: where the work of a run happens, on any provider.
//!
//! The ledger already tracks the resources of a sandbox. A [`Sandbox`] is the
//! access to it. All commands go through `creel-bridge` (see `creel_bridge`),
//! which is installed in the sandbox first. So on every provider alike, a command
//! ends at its time limit, at its silence limit, and when its requester is gone.
//!
//! A crash in the middle leaves what the ledger records: the sandbox itself, with
//! everything in it.

mod layout;
mod making;
mod request;
mod response;
mod transport;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::event::Stream;
use creel_bridge::exec::ExecEnding;
use secrecy::SecretString;

use crate::provider::{ProviderError, ProviderName, Usage};

pub use layout::{CREEL_DIRECTORY, SandboxLayout, WORKSPACE, program_name};
pub use making::{
    PartMaker, PartNotMade, SandboxError, SandboxOptions, SandboxPart, SandboxParts,
    SandboxProvider, no_sandbox,
};
pub use response::ExecResponse;
pub use transport::{Transport, with_transport};

/// The embedded bridge program for sandboxes.
#[derive(Clone, Copy)]
pub struct BridgeProgram {
    /// The whole static program.
    pub bytes: &'static [u8],
    /// Its SHA-256 in hexadecimal. The name of the uploaded file contains a part of it.
    pub digest: &'static str,
}

impl fmt::Debug for BridgeProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BridgeProgram").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// A command for a sandbox. Its environment and input are never shown.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// The program and its arguments. They must not be secret.
    pub command: Vec<String>,
    /// Variables in addition to those of the sandbox.
    pub env: BTreeMap<String, SecretString>,
    /// The working directory; `None` means [`Sandbox::workspace_root`].
    pub directory: Option<String>,
    /// The standard input.
    pub input: Option<SecretString>,
    /// The time after which it is killed.
    pub limit: Duration,
    /// How long it may go without output.
    pub silence: Option<Duration>,
}

impl Command {
    /// Creates a command from a program and its arguments.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>, limit: Duration) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        Self { command, limit, ..Self::default() }
    }

    /// Creates a command that runs a shell script.
    pub fn shell(script: &str, limit: Duration) -> Self {
        Self::new(["sh", "-c", script], limit)
    }
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It ran.
    Ended(ExecEnding),
    /// It could not be started.
    NotStarted(String),
}

/// The state of a sandbox, as its provider reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum SandboxStatus {
    /// It runs.
    Running,
    /// It exists but does not run. The text is the provider's name for its state.
    Resting(String),
    /// It is gone or being deleted.
    Absent,
}

/// Receives the output of a command while it runs.
pub type OutputListener<'a> = &'a mut (dyn FnMut(Stream, &[u8]) + Send);

/// The access to one sandbox.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Returns the provider of the sandbox.
    fn provider(&self) -> ProviderName;

    /// Returns the provider's id of the sandbox.
    fn id(&self) -> &str;

    /// Returns creel's own directory in the sandbox. It is absolute, exists, and is private.
    fn creel_directory(&self) -> &str;

    /// Returns the base directory of relative workspace paths. It is absolute and exists.
    fn workspace_root(&self) -> &str;

    /// Returns the path of the bridge program.
    fn bridge_path(&self) -> &str;

    /// Runs a command until it ends or reaches its time or silence limit.
    ///
    /// When this future is dropped, or this process dies, the command in the sandbox is killed with
    /// its process group. Processes that it moved to other sessions, as `creel-bridge serve` does
    /// with itself, end with the sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the sandbox cannot be reached, or when the response is incomplete. Then it is
    /// unknown whether the command ran, but it no longer runs.
    async fn exec(
        &self,
        command: &Command,
        listener: OutputListener<'_>,
    ) -> Result<Finished, ProviderError>;

    /// Writes a file. Parent directories are created, and an existing file is replaced atomically.
    ///
    /// A relative path is one in the workspace, and must not lead out of it.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be written.
    async fn upload(&self, path: &str, content: Bytes, mode: u32) -> Result<(), ProviderError>;

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read. The error of a missing file is `Gone`.
    async fn download(&self, path: &str) -> Result<Bytes, ProviderError>;

    /// Starts the sandbox again after a stop.
    ///
    /// # Errors
    ///
    /// Fails when the provider refuses.
    async fn start(&self) -> Result<(), ProviderError>;

    /// Stops the sandbox without releasing it.
    ///
    /// # Errors
    ///
    /// Fails when the provider refuses.
    async fn stop(&self, patience: Duration) -> Result<(), ProviderError>;

    /// Resumes frozen or stopped processes, so that they can be ended with a grace period. Returns
    /// whether there were any.
    ///
    /// # Errors
    ///
    /// Fails when this cannot be determined.
    async fn wake(&self) -> Result<bool, ProviderError>;

    /// Verifies that the sandbox is alive by running something in it.
    ///
    /// The state that the provider reports is not trusted.
    ///
    /// # Errors
    ///
    /// Fails when it is not alive, with `Gone` when it no longer exists.
    async fn probe(&self) -> Result<(), ProviderError>;

    /// Asks the provider for the state of the sandbox.
    ///
    /// A running sandbox is not proven to be alive, but a sandbox that does not run is not alive.
    ///
    /// # Errors
    ///
    /// Fails when the provider does not answer.
    async fn status(&self) -> Result<SandboxStatus, ProviderError>;

    /// Returns the resource usage, as far as it is known.
    ///
    /// # Errors
    ///
    /// Fails when the provider does not answer.
    async fn usage(&self) -> Result<Usage, ProviderError>;

    /// Renews the lease of the dead-man switch.
    ///
    /// # Errors
    ///
    /// Fails when the lease cannot be renewed.
    async fn renew(&self) -> Result<(), ProviderError>;
}
