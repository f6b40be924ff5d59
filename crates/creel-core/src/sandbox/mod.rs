//! Sandboxes: where a run's work happens, whoever provides them.
//!
//! A [`Sandbox`] is a resource that the ledger tracks already; this is the way
//! into it. All commands go through `creel-bridge` (see `creel_bridge`), which is
//! in the sandbox before anything else: so a command dies with its limit, with
//! its silence and with whoever ordered it, in all worlds alike.
//!
//! A crash in the middle leaves what the ledger records: the sandbox itself, with
//! all that is in it.

mod answer;
mod daytona;
mod docker;
mod entered;
mod order;
mod place;
mod process;
mod take;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::event::Stream;
use creel_bridge::exec::Ending;
use secrecy::SecretString;

use crate::provider::{ProviderError, ProviderName};

pub(crate) use place::CREEL_DIRECTORY;

pub use crate::provider::Usage;
pub use take::{SandboxPlan, Sandboxes, Taken};

/// The program for sandboxes, as it was built in.
#[derive(Clone, Copy)]
pub struct BridgeProgram {
    /// The whole static program.
    pub bytes: &'static [u8],
    /// The SHA-256 of it, in hexadecimal: what is uploaded is named by it.
    pub digest: &'static str,
}

impl fmt::Debug for BridgeProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BridgeProgram").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// A command for a sandbox. Its environment and input never show.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// The program and its arguments: nothing secret.
    pub command: Vec<String>,
    /// Variables on top of the sandbox's own.
    pub env: BTreeMap<String, SecretString>,
    /// Where it starts; `None` means [`Sandbox::workspace_root`].
    pub directory: Option<String>,
    /// What it reads.
    pub input: Option<SecretString>,
    /// When it is killed.
    pub limit: Duration,
    /// How long it may write nothing.
    pub silence: Option<Duration>,
}

impl Command {
    /// Runs a program with arguments.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>, limit: Duration) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        Self { command, limit, ..Self::default() }
    }

    /// Runs a script with a shell.
    pub fn shell(script: &str, limit: Duration) -> Self {
        Self::new(["sh", "-c", script], limit)
    }
}

/// How a command came out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It ran.
    Ended(Ending),
    /// It could not be started.
    NotStarted(String),
}

/// How a provider says a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Sight {
    /// It runs.
    Running,
    /// It is there and does not run, and this is how the provider calls that.
    Resting(String),
    /// It is not there any more, or on its way out.
    Absent,
}

/// Takes what a command writes while it runs.
pub type Listener<'a> = &'a mut (dyn FnMut(Stream, &[u8]) + Send);

/// The way into one sandbox.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Returns which world it is in.
    fn provider(&self) -> ProviderName;

    /// Returns the provider's id.
    fn id(&self) -> &str;

    /// Returns the directory in the sandbox that is creel's own: absolute, made, private.
    fn creel_directory(&self) -> &str;

    /// Returns the directory in which a relative workspace path begins: absolute, made.
    fn workspace_root(&self) -> &str;

    /// Returns where the bridge program is.
    fn bridge_path(&self) -> &str;

    /// Runs a command to its end, its limit or its silence. When this future is dropped, or this
    /// process dies, the command in the sandbox is killed with its process group; what it left in
    /// sessions of its own, as `creel-bridge serve` does with itself, ends with the sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the sandbox cannot be asked, or when the answer broke off: whether the command
    /// ran is not known then, but it does not run any more.
    async fn exec(
        &self,
        command: &Command,
        listener: Listener<'_>,
    ) -> Result<Finished, ProviderError>;

    /// Writes a file; directories above it are made, and an old one is replaced as a whole.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be written.
    async fn upload(&self, path: &str, content: Bytes, mode: u32) -> Result<(), ProviderError>;

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read; one that does not exist is `Gone`.
    async fn download(&self, path: &str) -> Result<Bytes, ProviderError>;

    /// Starts it again after a stop.
    ///
    /// # Errors
    ///
    /// Fails when the provider refuses.
    async fn start(&self) -> Result<(), ProviderError>;

    /// Stops it without releasing it.
    ///
    /// # Errors
    ///
    /// Fails when the provider refuses.
    async fn stop(&self, patience: Duration) -> Result<(), ProviderError>;

    /// Lets what was frozen or stopped in it go on, so that it can be ended with grace.
    ///
    /// # Errors
    ///
    /// Fails when that cannot be found out.
    async fn wake(&self) -> Result<(), ProviderError>;

    /// Proves by running something in it that it is alive. What the provider says of its state is
    /// not believed.
    ///
    /// # Errors
    ///
    /// Fails when it is not: `Gone` where it does not exist any more.
    async fn probe(&self) -> Result<(), ProviderError>;

    /// Asks the provider how it is. That it runs is no proof that it is alive; that it does not is
    /// one that it is not.
    ///
    /// # Errors
    ///
    /// Fails when the provider cannot be asked.
    async fn look(&self) -> Result<Sight, ProviderError>;

    /// Tells what it uses, as far as that can be told.
    ///
    /// # Errors
    ///
    /// Fails when the provider does not answer.
    async fn usage(&self) -> Result<Usage, ProviderError>;

    /// Tells its dead-man switch that its owner lives.
    ///
    /// # Errors
    ///
    /// Fails when that cannot be told.
    async fn renew(&self) -> Result<(), ProviderError>;
}
