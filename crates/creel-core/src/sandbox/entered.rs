//! The one sandbox there is: what all worlds have in common, over a way that each has of its own.
//!
//! ```text
//!   exec ─────────────────────┐
//!   upload, download, probe ──┤ order ─▶ Way ─▶ creel-bridge exec ─▶ the command
//!                             │              process: a socket of the holder
//!      Finished ◀── Answer ◀──┘ frames ◀──   docker: an attached exec
//!                                            daytona: a file, a session, its log
//! ```
//!
//! What a way says of an error is not the last word: the provider is asked
//! whether the sandbox is still there, so that one that is gone is called gone
//! and one that cannot be reached is not.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::event::Stream;
use creel_bridge::exec::{Ending, Order};
use creel_bridge::file::Verdict;
use tokio::time::timeout;

use crate::provider::{ErrorClass, ProviderError, ProviderName, Usage};

use super::answer::Answer;
use super::place::Place;
use super::{Command, Finished, Listener, Sandbox, Sight, order};

/// How much longer than the command's limit its answer may take.
const GRACE: Duration = Duration::from_secs(30);
/// How long a file may take on its way.
const TRANSFER_LIMIT: Duration = Duration::from_secs(600);
/// How long a sandbox that is alive may take to show it.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// The largest file that is carried into or out of a sandbox.
const LARGEST_FILE: usize = 40 << 20;
/// How often a sandbox that seems to run is looked at again after something failed.
const SECOND_LOOKS: u32 = 4;
/// The pause before that.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// As much is kept of what the bridge program says when it fails.
const COMPLAINT: usize = 400;

/// The way into the sandboxes of one world.
#[async_trait]
pub(super) trait Way: Send + Sync + fmt::Debug {
    /// Returns which world it is.
    fn provider(&self) -> ProviderName;

    /// Returns the provider's id of the sandbox.
    fn id(&self) -> &str;

    /// Carries an order to the bridge program, and what is heard of it back, until the last word
    /// was heard or nothing more comes. When this is dropped, the command is killed.
    async fn carry(
        &self,
        place: &Place,
        order: Order,
        answer: &mut Answer<'_>,
    ) -> Result<(), ProviderError>;

    /// Asks the provider how the sandbox is.
    async fn look(&self) -> Result<Sight, ProviderError>;

    /// Starts it again after a stop, with all that is needed in it.
    async fn start(&self, place: &Place) -> Result<(), ProviderError>;

    /// Stops it.
    async fn stop(&self, patience: Duration) -> Result<(), ProviderError>;

    /// Lets what was frozen or stopped in it go on, where that can be.
    async fn wake(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Tells what it uses.
    async fn usage(&self) -> Result<Usage, ProviderError>;

    /// Tells its dead-man switch that its owner lives.
    async fn renew(&self) -> Result<(), ProviderError>;
}

/// A sandbox and the way into it.
#[derive(Debug)]
pub(super) struct Entered<W> {
    pub way: W,
    pub place: Place,
}

impl<W: Way> Entered<W> {
    fn failure(&self, operation: &str, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: self.way.provider(),
            operation: format!("{operation} in {}", self.way.id()),
            message,
            class,
            retry_after: None,
        }
    }

    /// Carries an order out and returns its last word.
    async fn run(
        &self,
        what: &str,
        order: Order,
        listener: Listener<'_>,
    ) -> Result<Finished, ProviderError> {
        let mut answer = Answer::new(listener);
        let limit = Duration::from_millis(order.limit_ms).saturating_add(GRACE);
        let carried = timeout(limit, self.way.carry(&self.place, order, &mut answer)).await;
        // The last word holds, however the way broke after it.
        if let Some(finished) = answer.finished() {
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

    /// Asks the provider how the sandbox is. One that is about to end loses its connections
    /// first, so one that seems to run is looked at again.
    async fn look(&self) -> Result<Sight, ProviderError> {
        for _ in 0..SECOND_LOOKS {
            match self.way.look().await? {
                Sight::Running => tokio::time::sleep(LOOK_PAUSE).await,
                sight => return Ok(sight),
            }
        }
        self.way.look().await
    }

    /// Says what an error means, after a look at the sandbox.
    async fn judged(&self, what: &str, error: ProviderError) -> ProviderError {
        match self.look().await {
            Ok(Sight::Absent) => self.failure(what, ErrorClass::Gone, "the sandbox is gone".into()),
            Ok(Sight::Resting(state)) => {
                let message = format!("the sandbox does not run: it is {state}");
                self.failure(what, ErrorClass::Unreachable, message)
            }
            // It is there, so nothing that matters is gone.
            Ok(Sight::Running) => match error.class {
                ErrorClass::Gone | ErrorClass::InUse | ErrorClass::InProgress => {
                    ProviderError { class: ErrorClass::Unreachable, ..error }
                }
                _ => error,
            },
            // The provider itself cannot be asked, and that is the better reason.
            Err(unseen) => ProviderError { class: unseen.class, message: unseen.message, ..error },
        }
    }

    /// Runs a part of the bridge program; returns its output.
    async fn bridge(&self, what: &str, order: Order) -> Result<Vec<u8>, ProviderError> {
        let (mut output, mut complaint) = (Vec::new(), Vec::new());
        let mut listener = |stream: Stream, bytes: &[u8]| match stream {
            Stream::Output => output.extend_from_slice(bytes),
            Stream::Error => {
                let room = COMPLAINT.saturating_sub(complaint.len());
                complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        };
        let finished = self.run(what, order, &mut listener).await?;
        let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
        match finished {
            Finished::Ended(Ending::Code { code: 0 }) => Ok(output),
            Finished::Ended(Ending::Code { code }) => {
                Err(self.failure(what, class_of(Verdict::of_code(code)), complaint))
            }
            Finished::Ended(Ending::TimedOut | Ending::Silent) => {
                let message = "it took too long".to_owned();
                Err(self.failure(what, ErrorClass::Transient, message))
            }
            Finished::Ended(Ending::Signal { signal }) => {
                let message = format!("it was ended by signal {signal}");
                Err(self.failure(what, ErrorClass::Transient, message))
            }
            Finished::NotStarted(reason) => Err(self.failure(what, ErrorClass::Transient, reason)),
        }
    }
}

fn class_of(verdict: Option<Verdict>) -> ErrorClass {
    match verdict {
        Some(Verdict::Absent) => ErrorClass::Gone,
        Some(Verdict::Denied) => ErrorClass::Denied,
        Some(Verdict::NoRoom) => ErrorClass::Quota,
        Some(Verdict::Impossible) => ErrorClass::Invalid,
        Some(Verdict::Failed) | None => ErrorClass::Transient,
    }
}

#[async_trait]
impl<W: Way> Sandbox for Entered<W> {
    fn provider(&self) -> ProviderName {
        self.way.provider()
    }

    fn id(&self) -> &str {
        self.way.id()
    }

    fn creel_directory(&self) -> &str {
        &self.place.creel_directory
    }

    fn workspace_root(&self) -> &str {
        &self.place.workspace_root
    }

    fn bridge_path(&self) -> &str {
        &self.place.bridge_path
    }

    async fn exec(
        &self,
        command: &Command,
        listener: Listener<'_>,
    ) -> Result<Finished, ProviderError> {
        self.run("run a command", order::of_command(command, &self.place), listener).await
    }

    async fn upload(&self, path: &str, content: Bytes, mode: u32) -> Result<(), ProviderError> {
        let what = format!("write {path}");
        if content.len() > LARGEST_FILE {
            let message = format!("it is larger than {} MiB", LARGEST_FILE >> 20);
            return Err(self.failure(&what, ErrorClass::Invalid, message));
        }
        let (path, mode) = (self.place.absolute(path), format!("{mode:o}"));
        let words = ["put", "--mode", &mode, "--path", &path];
        let order = order::of_bridge(&self.place, &words, &content, TRANSFER_LIMIT);
        self.bridge(&what, order).await.map(drop)
    }

    async fn download(&self, path: &str) -> Result<Bytes, ProviderError> {
        let what = format!("read {path}");
        let (path, most) = (self.place.absolute(path), LARGEST_FILE.to_string());
        let words = ["get", "--most", &most, "--path", &path];
        let order = order::of_bridge(&self.place, &words, &[], TRANSFER_LIMIT);
        self.bridge(&what, order).await.map(Bytes::from)
    }

    async fn start(&self) -> Result<(), ProviderError> {
        self.way.start(&self.place).await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.way.stop(patience).await
    }

    async fn probe(&self) -> Result<(), ProviderError> {
        let order = order::of_bridge(&self.place, &["alive"], &[], PROBE_LIMIT);
        self.bridge("see a sign of life", order).await.map(drop)
    }

    async fn look(&self) -> Result<Sight, ProviderError> {
        self.way.look().await
    }

    async fn wake(&self) -> Result<(), ProviderError> {
        self.way.wake().await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.way.usage().await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        self.way.renew().await
    }
}
