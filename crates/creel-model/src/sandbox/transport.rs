//! What all sandboxes share, on top of the transport of each provider.
//!
//! ```text
//!   exec ─────────────────────┐
//!   upload, download, probe ──┤ request ─▶ Transport ─▶ creel-bridge exec ─▶ command
//!                             │              process: a socket of the holder
//!   Finished ◀─ ExecResponse ◀┘ frames ◀──   docker: an attached exec
//!                                            daytona: a file, a session, its log
//! ```
//!
//! The error of a transport is not final. The provider is asked whether the
//! sandbox still exists, so that a deleted sandbox is reported as gone and an
//! unreachable one is not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::provider::{ErrorClass, ProviderError, ProviderName, Usage};
use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::event::Stream;
use creel_bridge::exec::{ExecEnding, ExecRequest};
use creel_bridge::file::FileError;
use tokio::time::timeout;

use super::layout::{SandboxLayout, climbs_out};
use super::response::ExecResponse;
use super::{Command, Finished, OutputListener, Sandbox, SandboxStatus, request};

/// How much longer than the command's limit its response may take.
const GRACE: Duration = Duration::from_secs(30);
/// How long the transfer of a file may take.
const TRANSFER_LIMIT: Duration = Duration::from_secs(600);
/// How long a live sandbox may take to answer a probe.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// The maximum size of a file that is copied into or out of a sandbox.
const LARGEST_FILE: usize = 40 << 20;
/// How often to check a sandbox again that seems to run after an error.
const RECHECKS: u32 = 4;
/// The pause after each of these checks.
const RECHECK_PAUSE: Duration = Duration::from_millis(200);
/// The maximum number of error output bytes to keep of a failed bridge command.
const STDERR_LIMIT: usize = 400;

/// The transport to the sandboxes of one provider.
#[async_trait]
pub trait Transport: Send + Sync + fmt::Debug {
    /// Returns the provider.
    fn provider(&self) -> ProviderName;

    /// Returns the provider's id of the sandbox.
    fn id(&self) -> &str;

    /// Sends a request to the bridge program, and feeds its output to the response.
    ///
    /// Returns at the final frame, or when nothing more arrives. Dropping the future kills the
    /// command.
    async fn carry(
        &self,
        layout: &SandboxLayout,
        request: ExecRequest,
        response: &mut ExecResponse<'_>,
    ) -> Result<(), ProviderError>;

    /// Asks the provider for the state of the sandbox.
    async fn status(&self) -> Result<SandboxStatus, ProviderError>;

    /// Starts it again after a stop, with everything it needs.
    async fn start(&self, layout: &SandboxLayout) -> Result<(), ProviderError>;

    /// Stops it.
    async fn stop(&self, patience: Duration) -> Result<(), ProviderError>;

    /// Resumes frozen or stopped processes in it, where that is possible. Returns whether there
    /// were any.
    async fn wake(&self) -> Result<bool, ProviderError> {
        Ok(false)
    }

    /// Returns its resource usage.
    async fn usage(&self) -> Result<Usage, ProviderError>;

    /// Renews the lease of its dead-man switch.
    async fn renew(&self) -> Result<(), ProviderError>;
}

/// Returns a sandbox that is reached by a transport.
pub fn with_transport<W: Transport + 'static>(
    transport: W,
    layout: SandboxLayout,
) -> Arc<dyn Sandbox> {
    Arc::new(TransportSandbox { transport, layout })
}

/// A sandbox that is reached by a transport.
#[derive(Debug)]
struct TransportSandbox<W> {
    transport: W,
    layout: SandboxLayout,
}

impl<W: Transport> TransportSandbox<W> {
    fn failure(&self, operation: &str, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: self.transport.provider(),
            operation: format!("{operation} in {}", self.transport.id()),
            message,
            class,
            retry_after: None,
        }
    }

    /// Sends a request and returns its result.
    async fn run(
        &self,
        what: &str,
        request: ExecRequest,
        listener: OutputListener<'_>,
    ) -> Result<Finished, ProviderError> {
        let mut response = ExecResponse::new(listener);
        let limit = Duration::from_millis(request.limit_ms).saturating_add(GRACE);
        let carried =
            timeout(limit, self.transport.carry(&self.layout, request, &mut response)).await;
        // The last message counts, however the transport broke after it.
        if let Some(finished) = response.finished() {
            return Ok(finished);
        }
        let error = match carried {
            Ok(Err(error)) => error,
            Ok(Ok(())) => {
                let message = "the answer broke off; the command does not run any more";
                self.failure(what, ErrorClass::Transient, message.to_owned())
            }
            Err(_) => {
                let message =
                    format!("there was no answer within {}", crate::duration::show(limit));
                self.failure(what, ErrorClass::Unreachable, message)
            }
        };
        Err(self.judged(what, error).await)
    }

    /// Asks the provider for the state of the sandbox.
    ///
    /// A sandbox that is about to end loses its connections first, so one that seems to run is
    /// checked again.
    async fn status(&self) -> Result<SandboxStatus, ProviderError> {
        for _ in 0..RECHECKS {
            match self.transport.status().await? {
                SandboxStatus::Running => tokio::time::sleep(RECHECK_PAUSE).await,
                status => return Ok(status),
            }
        }
        self.transport.status().await
    }

    /// Classifies an error by the current state of the sandbox.
    async fn judged(&self, what: &str, error: ProviderError) -> ProviderError {
        match self.status().await {
            Ok(SandboxStatus::Absent) => {
                self.failure(what, ErrorClass::Gone, "the sandbox is gone".into())
            }
            Ok(SandboxStatus::Resting(state)) => {
                let message = format!("the sandbox does not run: it is {state}");
                self.failure(what, ErrorClass::Unreachable, message)
            }
            // The sandbox still exists, so the error cannot mean that it is gone.
            Ok(SandboxStatus::Running) => match error.class {
                ErrorClass::Gone | ErrorClass::InUse | ErrorClass::InProgress => {
                    ProviderError { class: ErrorClass::Unreachable, ..error }
                }
                _ => error,
            },
            // The provider itself does not answer, and that is the better reason.
            Err(unseen) => ProviderError { class: unseen.class, message: unseen.message, ..error },
        }
    }

    /// Returns the absolute path of a file. A relative path must stay in the workspace.
    fn file_path(&self, what: &str, path: &str) -> Result<String, ProviderError> {
        if climbs_out(path) {
            let message = "the path leads out of the workspace".to_owned();
            return Err(self.failure(what, ErrorClass::Invalid, message));
        }
        Ok(self.layout.absolute(path))
    }

    /// Runs a subcommand of the bridge program. Returns its output.
    async fn bridge(&self, what: &str, request: ExecRequest) -> Result<Vec<u8>, ProviderError> {
        let (mut output, mut stderr) = (Vec::new(), Vec::new());
        let mut listener = |stream: Stream, bytes: &[u8]| match stream {
            Stream::Output => output.extend_from_slice(bytes),
            Stream::Error => {
                let room = STDERR_LIMIT.saturating_sub(stderr.len());
                stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        };
        let finished = self.run(what, request, &mut listener).await?;
        let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
        match finished {
            Finished::Ended(ExecEnding::Code { code: 0 }) => Ok(output),
            Finished::Ended(ExecEnding::Code { code }) => {
                Err(self.failure(what, class_of(FileError::of_code(code)), stderr))
            }
            Finished::Ended(ExecEnding::TimedOut | ExecEnding::Silent) => {
                let message = "it took too long".to_owned();
                Err(self.failure(what, ErrorClass::Transient, message))
            }
            Finished::Ended(ExecEnding::Signal { signal }) => {
                let message = format!("it was ended by signal {signal}");
                Err(self.failure(what, ErrorClass::Transient, message))
            }
            Finished::NotStarted(reason) => Err(self.failure(what, ErrorClass::Transient, reason)),
        }
    }
}

fn class_of(verdict: Option<FileError>) -> ErrorClass {
    match verdict {
        Some(FileError::Absent) => ErrorClass::Gone,
        Some(FileError::Denied) => ErrorClass::Denied,
        Some(FileError::NoRoom) => ErrorClass::Quota,
        Some(FileError::Impossible) => ErrorClass::Invalid,
        Some(FileError::Failed) | None => ErrorClass::Transient,
    }
}

#[async_trait]
impl<W: Transport> Sandbox for TransportSandbox<W> {
    fn provider(&self) -> ProviderName {
        self.transport.provider()
    }

    fn id(&self) -> &str {
        self.transport.id()
    }

    fn creel_directory(&self) -> &str {
        &self.layout.creel_directory
    }

    fn workspace_root(&self) -> &str {
        &self.layout.workspace_root
    }

    fn bridge_path(&self) -> &str {
        &self.layout.bridge_path
    }

    async fn exec(
        &self,
        command: &Command,
        listener: OutputListener<'_>,
    ) -> Result<Finished, ProviderError> {
        self.run("run a command", request::of_command(command, &self.layout), listener).await
    }

    async fn upload(&self, path: &str, content: Bytes, mode: u32) -> Result<(), ProviderError> {
        let what = format!("write {path}");
        if content.len() > LARGEST_FILE {
            let message = format!("it is larger than {} MiB", LARGEST_FILE >> 20);
            return Err(self.failure(&what, ErrorClass::Invalid, message));
        }
        let (path, mode) = (self.file_path(&what, path)?, format!("{mode:o}"));
        let args = ["put", "--mode", &mode, "--path", &path];
        let request = request::of_bridge(&self.layout, &args, &content, TRANSFER_LIMIT);
        self.bridge(&what, request).await.map(drop)
    }

    async fn download(&self, path: &str) -> Result<Bytes, ProviderError> {
        let what = format!("read {path}");
        let (path, most) = (self.file_path(&what, path)?, LARGEST_FILE.to_string());
        let args = ["get", "--most", &most, "--path", &path];
        let request = request::of_bridge(&self.layout, &args, &[], TRANSFER_LIMIT);
        self.bridge(&what, request).await.map(Bytes::from)
    }

    async fn start(&self) -> Result<(), ProviderError> {
        self.transport.start(&self.layout).await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.transport.stop(patience).await
    }

    async fn probe(&self) -> Result<(), ProviderError> {
        let request = request::of_bridge(&self.layout, &["alive"], &[], PROBE_LIMIT);
        self.bridge("see a sign of life", request).await.map(drop)
    }

    async fn status(&self) -> Result<SandboxStatus, ProviderError> {
        self.transport.status().await
    }

    async fn wake(&self) -> Result<bool, ProviderError> {
        self.transport.wake().await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.transport.usage().await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        self.transport.renew().await
    }
}
