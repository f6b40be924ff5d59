//! The engine: drives one run to its outcome, and releases everything it created.
//!
//! ```text
//!   provision ─▶ bootstrap (checklist) ─▶ turns (bridge) ─┐
//!       │               │                     │           │
//!       └─── cause ─────┴──── cause ──────────┴── cause ──┴─▶ teardown ─▶ release ─▶ outcome
//! ```
//!
//! The end is the same whatever stops the work: success, a cause, a cancel, a
//! limit or a panic. The runtime ends with a grace period, the teardown steps
//! run, and all resources are released and verified. Only then is the outcome
//! recorded. If the process is killed in the middle, its watchdog or the next
//! reconcile does this; a run in the background has no watchdog, and is resumed
//! or ends with its lease.

mod agent;
mod bootstrap;
mod bridge;
mod checklist;
mod commands;
mod credential;
mod ending;
mod finalize;
mod git;
mod provision;
mod resume;
mod slots;
mod tail;
mod tls;
mod turn_loop;
mod turns;
mod workspace;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use creel_core::scope::{Held, Supervisor};
use creel_ledger::event_log::{Journal, RecordsError};
use creel_ledger::{Ledger, LedgerError, OnOwnerDeath, PlacedCommand, WhenFull};
use creel_model::clock::now_ms;
use creel_model::id::ResourceId;
use creel_model::provider::Providers;
use creel_model::run::{
    AttemptFrom, Cause, CauseClass, Condition, ConditionStatus, ConditionType, Connection, Phase,
    RunEvent, RunState,
};
use creel_sanitise as sanitise;
use creel_sanitise::{Diagnostic, Masked, Masker, Secrets};
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::sandbox::{Sandbox, Sandboxes};
use crate::workflow::Resolved;

pub use provision::renewal;

/// The message of the cause when a run ends because the disk is full.
const DISK_FULL: &str = "the disk that holds creel's records is full";

/// The context in which a run is driven.
#[derive(Debug, Clone)]
pub struct RunContext {
    /// The ledger that records everything.
    pub ledger: Ledger,
    /// Creates and releases resources in the name of this process.
    pub supervisor: Supervisor,
    /// The available providers.
    pub providers: Providers,
    /// Creates sandboxes and connects to them.
    pub sandboxes: Sandboxes,
    /// What happens to the sandbox when this process dies.
    pub on_owner_death: OnOwnerDeath,
}

/// What a run receives from other processes while it is driven.
#[derive(Debug)]
pub struct RunInbox {
    /// Messages and other commands, oldest first.
    pub incoming: mpsc::Receiver<PlacedCommand>,
    /// Cancelled when the run must end.
    pub cancel: CancellationToken,
}

/// How an attempt ended.
#[derive(Debug)]
#[must_use]
pub struct RunEnd {
    /// The state of the run, including what could not be recorded.
    pub state: RunState,
    /// How many changes could not be recorded, because the disk is full.
    pub audit_incomplete: usize,
}

/// Why a run could not be driven to its end.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The records could not be written.
    #[error("the run's records could not be kept")]
    Journal(#[from] RecordsError),
    /// The ledger could not be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl DriveError {
    fn is_disk_full(&self) -> bool {
        match self {
            Self::Journal(error) => error.is_disk_full(),
            Self::Ledger(error) => error.is_disk_full(),
        }
    }
}

/// Why the work of an attempt stopped early.
#[derive(Debug)]
enum Stopped {
    /// For a known cause.
    Cause(Cause),
    /// Because nothing can be recorded any more.
    Journal(RecordsError),
}

impl From<RecordsError> for Stopped {
    fn from(error: RecordsError) -> Self {
        Self::Journal(error)
    }
}

/// One attempt of one run.
#[derive(Debug)]
pub struct Drive {
    context: RunContext,
    workflow: Resolved,
    /// Everything that must not be stored or shown.
    secrets: Secrets,
    masker: Masker,
    journal: Journal,
    orders: RunInbox,
    /// The sandbox, once there is one.
    sandbox: Option<Arc<dyn Sandbox>>,
    /// The resources that this attempt created.
    held: Vec<Held>,
    /// The resources that are verified gone. Their records may not say so on a full disk.
    released: BTreeSet<ResourceId>,
    /// Whether the bridge was started.
    has_bridge: bool,
}

impl Drive {
    /// Prepares an attempt.
    pub fn new(
        context: RunContext,
        workflow: Resolved,
        journal: Journal,
        orders: RunInbox,
    ) -> Self {
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
            context,
            workflow,
            secrets,
            masker,
            journal,
            orders,
            sandbox: None,
            held: Vec::new(),
            released: BTreeSet::new(),
            has_bridge: false,
        }
    }

    /// Drives a new attempt to its end, whatever happens, and returns the final state.
    ///
    /// # Errors
    ///
    /// Fails only when the records cannot be written. Even then everything is released. A full disk
    /// is no error: the end says what could not be recorded.
    pub async fn run(mut self, from: AttemptFrom) -> Result<RunEnd, DriveError> {
        let (attempt, kept) =
            (self.journal.state().attempt + 1, self.journal.state().kept_until_ms);
        self.journal.record(RunEvent::AttemptStarted { attempt, from }).await?;
        let entry = match from {
            AttemptFrom::Bootstrap => StartPoint::Kept,
            AttemptFrom::Scratch if kept.is_some() => StartPoint::Anew,
            AttemptFrom::Scratch => StartPoint::Beginning,
        };
        let ended = self.guarded(entry).await;
        self.conclude(ended).await
    }

    /// Continues an attempt whose driver died, from the phase it had reached.
    ///
    /// # Errors
    ///
    /// As [`Drive::run`].
    pub async fn resume(mut self) -> Result<RunEnd, DriveError> {
        let entry = match self.journal.state().phase {
            Phase::Queued if self.journal.state().attempt == 0 => {
                return self.run(AttemptFrom::Scratch).await;
            }
            Phase::Queued | Phase::Provisioning => StartPoint::Anew,
            Phase::Bootstrapping => StartPoint::Checklist,
            Phase::Ready
            | Phase::Running
            | Phase::Retrying
            | Phase::AwaitingInput
            | Phase::Paused => StartPoint::Turns,
            Phase::Releasing => StartPoint::Release,
            // Reached only if the caller did not check the phase. A run that is over does not
            // change.
            Phase::Succeeded | Phase::Failed | Phase::Cancelled => {
                return Ok(RunEnd { state: self.journal.state().clone(), audit_incomplete: 0 });
            }
        };
        let ended = self.guarded(entry).await;
        self.conclude(ended).await
    }

    /// Ends an attempt whose driver died, because a user cancelled the run.
    ///
    /// # Errors
    ///
    /// As [`Drive::run`].
    pub async fn cancel_orphaned(mut self) -> Result<RunEnd, DriveError> {
        if self.journal.state().attempt == 0 {
            let first = RunEvent::AttemptStarted { attempt: 1, from: AttemptFrom::Scratch };
            self.journal.record(first).await?;
        }
        // A run that is releasing already has its verdict.
        let is_open = self.journal.state().phase != Phase::Releasing;
        let ended = match self.reopen_to_release().await {
            Ok(()) if is_open => Err(self.cancelled().await),
            other => other,
        };
        self.conclude(ended).await
    }

    /// Records that a user cancelled the run, and returns that as the cause.
    async fn cancelled(&mut self) -> Stopped {
        match self.record(RunEvent::CancelRequested).await {
            Ok(()) => self.stopped(CauseClass::Cancelled, "a user cancelled the run"),
            Err(stopped) => stopped,
        }
    }

    /// Does the work until it ends or until a cancel, a limit or a panic stops it.
    async fn guarded(&mut self, entry: StartPoint) -> Result<(), Stopped> {
        let cancel = self.orders.cancel.clone();
        let (wall, ledger) = (self.workflow.limits.wall, self.context.ledger.clone());
        let ended = {
            let work = AssertUnwindSafe(self.work(entry)).catch_unwind();
            tokio::select! {
                ended = work => WorkEnd::ByItself(ended),
                () = cancel.cancelled() => WorkEnd::Cancelled,
                () = limit(wall) => WorkEnd::WallLimit,
                () = ledger.disk_full() => WorkEnd::DiskFull,
            }
        };
        match ended {
            WorkEnd::ByItself(Ok(result)) => result,
            WorkEnd::ByItself(Err(_)) => {
                error!("the engine panicked; its resources are released");
                Err(self
                    .stopped(CauseClass::HubError, "creel itself failed while it drove the run"))
            }
            WorkEnd::Cancelled => Err(self.cancelled().await),
            // The reserved disk space is for the teardown and the release.
            WorkEnd::DiskFull => Err(self.stopped(CauseClass::DiskFull, DISK_FULL)),
            WorkEnd::WallLimit => {
                let limit = creel_model::duration::show(wall.unwrap_or_default());
                let message = format!("limits.wall = {limit} was reached");
                Err(self.stopped(CauseClass::BudgetExceeded, &message))
            }
        }
    }

    async fn work(&mut self, entry: StartPoint) -> Result<(), Stopped> {
        match entry {
            StartPoint::Beginning => self.provision().await?,
            StartPoint::Anew => {
                self.release_earlier().await?;
                self.provision().await?;
            }
            StartPoint::Kept => {
                self.reopen().await?;
                self.use_again().await?;
            }
            StartPoint::Checklist | StartPoint::Turns => self.reopen().await?,
            StartPoint::Release => return self.reopen_to_release().await,
        }
        if entry != StartPoint::Turns {
            self.bootstrap().await?;
        }
        self.run_turns().await
    }

    /// Records what ended the work, releases everything, and records the outcome.
    async fn conclude(mut self, ended: Result<(), Stopped>) -> Result<RunEnd, DriveError> {
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
        self.finalize(broken).await
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

    /// Records a condition if it changed.
    async fn condition(
        &mut self,
        about: ConditionType,
        status: ConditionStatus,
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

    /// Creates a cause for this attempt.
    fn cause(&self, class: CauseClass, message: &str) -> Cause {
        Cause::new(class, self.masker.diagnostic(message), self.journal.state().attempt)
    }

    fn stopped(&self, class: CauseClass, message: &str) -> Stopped {
        Stopped::Cause(self.cause(class, message))
    }

    /// Keeps a user's text out of all diagnostics from now on.
    fn hide_text(&mut self, text: &str) {
        self.secrets.add_private_text(text);
        self.masker = Masker::new(&self.secrets);
    }

    /// Masks one more secret from now on.
    fn hide(&mut self, name: &str, secret: &secrecy::SecretString) {
        self.secrets.add(name, secret);
        sanitise::remember(&self.secrets);
        self.masker = Masker::new(&self.secrets);
    }
}

/// Where the work begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartPoint {
    /// With the creation of the sandbox.
    Beginning,
    /// With a new sandbox, after the release of what an earlier driver left.
    Anew,
    /// With the checklist, in the sandbox that an earlier attempt kept.
    Kept,
    /// With the checklist, in the sandbox of the driver that died.
    Checklist,
    /// With the turns, in the sandbox of the driver that died.
    Turns,
    /// With the release.
    Release,
}

/// What ended the work.
enum WorkEnd<T> {
    ByItself(T),
    Cancelled,
    WallLimit,
    DiskFull,
}

/// Waits until the limit has passed, or for ever if there is none.
async fn limit(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
