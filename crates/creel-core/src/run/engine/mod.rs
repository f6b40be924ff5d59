//! The engine: drives one run from nothing to its outcome, and gives everything back.
//!
//! ```text
//!   provision ─▶ bootstrap (checklist) ─▶ turns (bridge) ─┐
//!       │               │                     │           │
//!       └─── cause ─────┴──── cause ──────────┴── cause ──┴─▶ teardown ─▶ release ─▶ outcome
//! ```
//!
//! Whatever ends the work (success, a cause, a cancel, a limit, a panic), the
//! way out is the same: the runtime is ended with grace, teardown steps run, all
//! that was taken is released and verified, and only then the outcome is
//! recorded. A process that is killed in the middle leaves this to its watchdog
//! or to the next reconcile.

mod agent;
mod bootstrap;
mod bridge;
mod checklist;
mod course;
mod credential;
mod ending;
mod git;
mod give_back;
mod obey;
mod provision;
mod resume;
mod slots;
mod tail;
mod turns;
mod workspace;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::clock::now_ms;
use crate::ledger::{Ledger, LedgerError, OnOwnerDeath, PlacedOrder};
use crate::provider::Providers;
use crate::sandbox::{Sandbox, Sandboxes};
use crate::sanitise::{self, Diagnostic, Masked, Masker, Secrets};
use crate::scope::{Held, Supervisor};
use crate::workflow::Resolved;

use super::records::{Journal, RecordsError};
use super::{
    AttemptFrom, Cause, CauseClass, Condition, ConditionType, Connection, Phase, RunEvent,
    RunState, Status,
};

pub use give_back::certify;
pub use provision::renewal;

/// What a run is told that ends for want of space.
const DISK_FULL: &str = "the disk that holds creel's records is full";

/// What a run is driven with.
#[derive(Debug, Clone)]
pub struct Means {
    /// Where everything is on record.
    pub ledger: Ledger,
    /// Takes and gives back in the name of this process.
    pub supervisor: Supervisor,
    /// The worlds at hand.
    pub providers: Providers,
    /// The ways into sandboxes.
    pub sandboxes: Sandboxes,
    /// What becomes of the sandbox when this process dies.
    pub on_owner_death: OnOwnerDeath,
}

/// What others tell a run while it is driven.
#[derive(Debug)]
pub struct Orders {
    /// Messages and the like, in order.
    pub incoming: mpsc::Receiver<PlacedOrder>,
    /// Set when the run is to end.
    pub cancel: CancellationToken,
}

/// Why a run could not be driven to its end.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// Its records could not be kept.
    #[error("the run's records could not be kept")]
    Journal(#[from] RecordsError),
    /// The ledger could not be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Why the work of an attempt ended before its end.
#[derive(Debug)]
enum Stopped {
    /// For a cause that was named.
    Cause(Cause),
    /// Because nothing could be recorded any more.
    Journal(RecordsError),
}

impl From<RecordsError> for Stopped {
    fn from(error: RecordsError) -> Self {
        Self::Journal(error)
    }
}

/// One attempt of one run, being driven.
#[derive(Debug)]
pub struct Drive {
    means: Means,
    workflow: Resolved,
    /// Everything that must not be kept or shown.
    secrets: Secrets,
    masker: Masker,
    journal: Journal,
    orders: Orders,
    /// The way into the sandbox, once there is one.
    sandbox: Option<Arc<dyn Sandbox>>,
    /// What this attempt took.
    held: Vec<Held>,
    /// Whether the bridge was started.
    has_bridge: bool,
}

impl Drive {
    /// Prepares an attempt.
    pub fn new(means: Means, workflow: Resolved, journal: Journal, orders: Orders) -> Self {
        let mut secrets = workflow.known_secrets();
        for text in workflow.private_texts() {
            secrets.add_private_text(text);
        }
        sanitise::remember(&secrets);
        let masker = Masker::new(&secrets);
        for unmasked in masker.unmasked() {
            let (name, why) = (&unmasked.name, unmasked.why);
            warn!("the value of {name} is shown where the agent writes it: {why}");
        }
        Self {
            means,
            workflow,
            secrets,
            masker,
            journal,
            orders,
            sandbox: None,
            held: Vec::new(),
            has_bridge: false,
        }
    }

    /// Drives a new attempt to its end, whatever happens on the way, and returns what is known.
    ///
    /// # Errors
    ///
    /// Fails only when the records cannot be kept; even then everything is given back.
    pub async fn run(mut self, from: AttemptFrom) -> Result<RunState, DriveError> {
        let (attempt, kept) =
            (self.journal.state().attempt + 1, self.journal.state().kept_until_ms);
        self.journal.record(RunEvent::AttemptStarted { attempt, from }).await?;
        let entry = match from {
            AttemptFrom::Bootstrap => Entry::Kept,
            AttemptFrom::Scratch if kept.is_some() => Entry::Anew,
            AttemptFrom::Scratch => Entry::Beginning,
        };
        let ended = self.guarded(entry).await;
        self.conclude(ended).await
    }

    /// Goes on with an attempt whose driver died, wherever that was.
    ///
    /// # Errors
    ///
    /// As [`Drive::run`].
    pub async fn go_on(mut self) -> Result<RunState, DriveError> {
        let entry = match self.journal.state().phase {
            Phase::Queued if self.journal.state().attempt == 0 => {
                return self.run(AttemptFrom::Scratch).await;
            }
            Phase::Queued | Phase::Provisioning => Entry::Anew,
            Phase::Bootstrapping => Entry::Checklist,
            Phase::Ready
            | Phase::Running
            | Phase::Retrying
            | Phase::AwaitingInput
            | Phase::Paused => Entry::Turns,
            Phase::Releasing => Entry::Release,
            // Only a caller that did not look comes here; what is over stays as it is.
            Phase::Succeeded | Phase::Failed | Phase::Cancelled => {
                return Ok(self.journal.state().clone());
            }
        };
        let ended = self.guarded(entry).await;
        self.conclude(ended).await
    }

    /// Ends an attempt whose driver died, because somebody wants it to end.
    ///
    /// # Errors
    ///
    /// As [`Drive::run`].
    pub async fn call_off(mut self) -> Result<RunState, DriveError> {
        if self.journal.state().attempt == 0 {
            let first = RunEvent::AttemptStarted { attempt: 1, from: AttemptFrom::Scratch };
            self.journal.record(first).await?;
        }
        // What is on its way out has its verdict already.
        let is_open = self.journal.state().phase != Phase::Releasing;
        let ended = match self.reopen_to_release().await {
            Ok(()) if is_open => Err(self.cancelled().await),
            other => other,
        };
        self.conclude(ended).await
    }

    /// Records that somebody cancelled the run, and names that as the cause.
    async fn cancelled(&mut self) -> Stopped {
        match self.record(RunEvent::CancelRequested).await {
            Ok(()) => self.stopped(CauseClass::Cancelled, "somebody cancelled the run"),
            Err(stopped) => stopped,
        }
    }

    /// Does the work; a cancel, a limit or a panic ends it.
    async fn guarded(&mut self, entry: Entry) -> Result<(), Stopped> {
        let cancel = self.orders.cancel.clone();
        let (wall, ledger) = (self.workflow.limits.wall, self.means.ledger.clone());
        let ended = {
            let work = AssertUnwindSafe(self.work(entry)).catch_unwind();
            tokio::select! {
                ended = work => Ended::ByItself(ended),
                () = cancel.cancelled() => Ended::Cancelled,
                () = limit(wall) => Ended::WallLimit,
                () = ledger.disk_full() => Ended::DiskFull,
            }
        };
        match ended {
            Ended::ByItself(Ok(result)) => result,
            Ended::ByItself(Err(_)) => {
                error!("the engine panicked; what it took is given back");
                Err(self
                    .stopped(CauseClass::HubError, "creel itself failed while it drove the run"))
            }
            Ended::Cancelled => Err(self.cancelled().await),
            // The space that is kept for this is for the way out.
            Ended::DiskFull => Err(self.stopped(CauseClass::DiskFull, DISK_FULL)),
            Ended::WallLimit => {
                let limit = crate::duration::show(wall.unwrap_or_default());
                let message = format!("limits.wall = {limit} was reached");
                Err(self.stopped(CauseClass::BudgetExceeded, &message))
            }
        }
    }

    async fn work(&mut self, entry: Entry) -> Result<(), Stopped> {
        match entry {
            Entry::Beginning => self.provision().await?,
            Entry::Anew => {
                self.give_back_earlier().await?;
                self.provision().await?;
            }
            Entry::Kept => {
                self.reopen().await?;
                self.use_again().await?;
            }
            Entry::Checklist | Entry::Turns => self.reopen().await?,
            Entry::Release => return self.reopen_to_release().await,
        }
        if entry != Entry::Turns {
            self.bootstrap().await?;
        }
        self.take_turns().await
    }

    /// Latches what ended the work, gives everything back, and records the outcome.
    async fn conclude(mut self, ended: Result<(), Stopped>) -> Result<RunState, DriveError> {
        let mut broken = None;
        match ended {
            Ok(()) => {}
            Err(Stopped::Cause(cause)) => {
                let latched = self.causes_of(cause).into_iter();
                let latched = latched.map(|cause| RunEvent::CauseLatched { cause }).collect();
                broken = self.journal.record_all(latched).await.err();
            }
            Err(Stopped::Journal(error)) => broken = Some(error),
        }
        self.give_back(broken).await
    }

    async fn record(&mut self, event: RunEvent) -> Result<(), Stopped> {
        Ok(self.journal.record(event).await?)
    }

    async fn enter(&mut self, phase: Phase) -> Result<(), Stopped> {
        if self.journal.state().phase == phase {
            return Ok(());
        }
        self.record(RunEvent::PhaseEntered { phase }).await
    }

    async fn connect(&mut self, connection: Connection) -> Result<(), Stopped> {
        if self.journal.state().connection == connection {
            return Ok(());
        }
        self.record(RunEvent::ConnectionChanged { connection }).await
    }

    /// Records a condition, if it is news.
    async fn condition(
        &mut self,
        about: ConditionType,
        status: Status,
        reason: &'static str,
        message: Diagnostic,
    ) -> Result<(), Stopped> {
        let known = self.journal.state().conditions.get(&about);
        if known.is_some_and(|known| known.status == status && known.reason == reason) {
            return Ok(());
        }
        let condition = Condition {
            about,
            status,
            reason: Masked::ours(reason),
            message,
            last_transition_ms: now_ms(),
        };
        self.record(RunEvent::ConditionChanged { condition }).await
    }

    /// Names a cause of this attempt.
    fn cause(&self, class: CauseClass, message: &str) -> Cause {
        Cause::new(class, self.masker.diagnostic(message), self.journal.state().attempt)
    }

    fn stopped(&self, class: CauseClass, message: &str) -> Stopped {
        Stopped::Cause(self.cause(class, message))
    }

    /// Keeps a text of a person out of every diagnostic from here on.
    fn hide_text(&mut self, text: &str) {
        self.secrets.add_private_text(text);
        self.masker = Masker::new(&self.secrets);
    }

    /// Hides something more from here on.
    fn hide(&mut self, name: &str, secret: &secrecy::SecretString) {
        self.secrets.add(name, secret);
        sanitise::remember(&self.secrets);
        self.masker = Masker::new(&self.secrets);
    }
}

/// Where the work begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// With the sandbox.
    Beginning,
    /// With a new sandbox, after what an earlier driver left is given back.
    Anew,
    /// With the checklist, in the sandbox that an earlier attempt kept.
    Kept,
    /// With the checklist, in the sandbox of the driver that died.
    Checklist,
    /// In the middle of the turns.
    Turns,
    /// On the way out.
    Release,
}

/// What ended the work.
enum Ended<T> {
    ByItself(T),
    Cancelled,
    WallLimit,
    DiskFull,
}

/// Waits as long as a limit says; without one, for ever.
async fn limit(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
