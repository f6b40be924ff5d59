//! The end of a run, the same on every path: end the runtime, tear down, release,
//! verify, record the outcome.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use creel_bridge::serve;
use creel_core::scope::Held;
use creel_ledger::WhenFull;
use creel_ledger::event_log::RecordsError;
use creel_ledger::{Event, LedgerError, Record, RecordFilter};
use creel_model::certificate::CertificateEntry;
use creel_model::clock::{millis, now_ms};
use creel_model::id::RunId;
use creel_model::labels;
use creel_model::provider::{ProviderName, Providers};
use creel_model::run::{CauseClass, Certified, Connection, Phase, RunEvent};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::sandbox::Sandbox;
use crate::{messages, spool};

use super::checklist::run;
use super::tail::TailMessage;
use super::{Drive, DriveError, RunContext, RunEnd, Stopped, slots};

/// How long the runtime has to end by itself. It may have a database to close.
const GRACE: Duration = Duration::from_secs(10);
/// How much longer to wait for its end.
const MARGIN: Duration = Duration::from_secs(5);
/// How long to wait for the removal of the spool before a release. A sandbox that freezes itself
/// again must not use up more time, because the spool usually goes with it anyway.
const SPOOL_PATIENCE: Duration = Duration::from_secs(4);
/// The first pause between two wake-ups of a sandbox that is being ended.
const WAKE_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause between two wake-ups.
const LONGEST_WAKE_PAUSE: Duration = Duration::from_secs(8);
/// How often a sandbox that is being ended may freeze itself again. A process may be in a few
/// control groups, and freeze itself in one after the other.
const MOST_WAKES: u32 = 6;
/// How long to wait for unconfirmed creates and for releases in progress.
const RELEASE_PATIENCE: Duration = Duration::from_secs(30);
/// The first pause between two release rounds.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl Drive {
    /// Releases everything and records the outcome. `broken` is the reason why nothing can be
    /// recorded.
    pub(super) async fn finalize(
        mut self,
        broken: Option<RecordsError>,
    ) -> Result<RunEnd, DriveError> {
        if let Some(sandbox) = &self.sandbox {
            wake(sandbox.as_ref()).await;
        }
        self.remove_leftover_keys().await;
        let closed = match broken {
            None => self.close_down().await,
            Some(error) => Err(Stopped::Journal(error)),
        };
        let keeps = closed.is_ok() && self.keeps().await?;
        let certificate = match keeps {
            true => None,
            false => Some(self.release().await?),
        };
        match closed {
            Err(Stopped::Journal(error)) if error.is_disk_full() => {}
            Err(Stopped::Journal(error)) => return Err(error.into()),
            Ok(()) | Err(Stopped::Cause(_)) => {}
        }
        let end = self.write_ending(certificate).await?;
        messages::remove_all(self.context.ledger.home(), self.journal.run());
        info!(run = %self.journal.run(), phase = %end.state.phase, "the run has ended");
        Ok(end)
    }

    /// Ends the runtime with a grace period and runs the teardown. Neither changes the cause.
    async fn close_down(&mut self) -> Result<(), Stopped> {
        self.enter(Phase::Releasing).await?;
        let Some(sandbox) = self.sandbox.clone() else { return Ok(()) };
        if self.is_lost() {
            return self.connect(Connection::Offline).await;
        }
        if self.fills_the_disk() {
            // No grace for an agent that may be filling the disk: each of its writes uses up the
            // space that is reserved for the teardown and the release.
            return self.connect(Connection::None).await;
        }
        let ended = keep_awake(sandbox.as_ref(), self.end_inside(&sandbox)).await;
        match ended {
            Some(ended) => ended,
            None => {
                warn!("the sandbox freezes itself again and again; it is ended without grace");
                self.connect(Connection::None).await
            }
        }
    }

    /// Ends the processes in the sandbox, and records whether the sandbox was lost by then.
    async fn end_inside(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        let ended = !self.has_bridge || self.end_runtime(sandbox).await?;
        let torn_down = self.tear_down(sandbox.as_ref()).await?;
        let responded = ended && torn_down;
        if !responded && !self.is_alive(sandbox.as_ref()).await {
            return self.note_lost().await;
        }
        // Before the release is even tried, so that a failed one leaves no spool.
        if !spool::remove(sandbox.as_ref(), SPOOL_PATIENCE).await {
            warn!("what the agent said could not be removed; it goes with the sandbox");
        }
        self.connect(Connection::None).await
    }

    /// Returns whether the sandbox answers a probe within the grace period.
    ///
    /// A sandbox that does not answer is not waited for: the run is over, and the sandbox is
    /// deleted next.
    async fn is_alive(&self, sandbox: &dyn Sandbox) -> bool {
        matches!(timeout(GRACE, sandbox.probe()).await, Ok(Ok(())))
    }

    /// Returns whether the sandbox was lost before the release began.
    fn is_lost(&self) -> bool {
        self.journal.state().cause().is_some_and(|cause| cause.class == CauseClass::SandboxLost)
    }

    /// Records that the sandbox was lost during the release, next to the existing cause.
    ///
    /// A run without a cause has done its work, so the loss does not count against it.
    async fn note_lost(&mut self) -> Result<(), Stopped> {
        self.connect(Connection::Offline).await?;
        if self.journal.state().cause().is_none() {
            return Ok(());
        }
        let cause = self.cause(CauseClass::SandboxLost, "the sandbox was lost during its release");
        self.record(RunEvent::CauseLatched { cause }).await
    }

    /// Ends the runtime. Returns whether the bridge reported its end.
    async fn end_runtime(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<bool, Stopped> {
        let stop = serve::BridgeCommand::Stop {
            grace_ms: u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX),
        };
        let sent = timeout(GRACE, self.send_to_bridge(sandbox.as_ref(), "stop", &stop)).await;
        if !matches!(sent, Ok(Ok(()))) {
            warn!("the runtime could not be asked to end; it ends with the sandbox");
            return Ok(false);
        }
        timeout(GRACE + MARGIN, self.drain_events(sandbox)).await.unwrap_or_else(|_| {
            warn!("the runtime did not end in time; it ends with the sandbox");
            Ok(false)
        })
    }

    /// Records the last output of the agent. Returns whether the bridge reported its end.
    async fn drain_events(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<bool, Stopped> {
        let mut turn_loop = self.turn_loop(Arc::clone(sandbox));
        while let Some(message) = turn_loop.tail.messages.recv().await {
            match message {
                TailMessage::Event(seq, event) => {
                    self.record_last_output(&mut turn_loop, seq, event).await?
                }
                TailMessage::BridgeEnded => return Ok(true),
                TailMessage::SandboxGone(_) => return Ok(false),
                TailMessage::Alive | TailMessage::Broken => {}
            }
        }
        Ok(false)
    }

    /// Runs the teardown. Returns whether every step ended by itself.
    async fn tear_down(&mut self, sandbox: &dyn Sandbox) -> Result<bool, Stopped> {
        let mut ended = true;
        for script in self.workflow.teardown.clone() {
            let command = self.script_command(&script);
            let ran = timeout(script.timeout + MARGIN, run(sandbox, &command)).await;
            ended &= matches!(&ran, Ok(Ok(ran)) if ran.code().is_some());
            let found = match ran {
                Ok(Ok(ran)) => ran.found(&self.masker),
                Ok(Err(error)) => self.masker.diagnostic(&error.to_string()),
                Err(_) => self.masker.diagnostic("no answer within its time limit"),
            };
            let name = self.masker.mask(&script.name);
            self.record(RunEvent::TeardownEnded { name, found }).await?;
        }
        Ok(ended)
    }

    /// Keeps the sandbox if the workflow asks for that after a failure.
    async fn keeps(&mut self) -> Result<bool, DriveError> {
        let keep = self.workflow.on_failure.keep;
        let failed = self.journal.state().verdict() == Phase::Failed;
        let is_offline = self.journal.state().connection == Connection::Offline;
        let is_unfit = is_offline || self.fills_the_disk();
        if !failed || keep.is_zero() || self.held.is_empty() || is_unfit {
            return Ok(false);
        }
        if !self.has_no_spool().await {
            warn!("what the agent said could not be removed from the sandbox, so it is not kept");
            return Ok(false);
        }
        match self.record_kept(millis(keep)).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_disk_full() => {
                warn!(%error, "that it is kept could not be recorded, so it is not kept");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Records that the sandbox stays for this time.
    async fn record_kept(&mut self, lease_ms: i64) -> Result<(), DriveError> {
        // This also restarts its dead-man switch.
        self.context.supervisor.renew().await?;
        let kept: Vec<_> =
            self.held.iter().map(|held| (held.resource, Event::Kept { lease_ms })).collect();
        self.context.ledger.append(&kept).await?;
        self.held.drain(..).for_each(Held::forget);
        let until_ms = now_ms().saturating_add(lease_ms);
        self.journal.record(RunEvent::Kept { until_ms }).await?;
        Ok(())
    }

    /// Makes sure that the sandbox contains no spool.
    async fn has_no_spool(&self) -> bool {
        match &self.sandbox {
            Some(sandbox) => spool::remove(sandbox.as_ref(), GRACE).await,
            None => true,
        }
    }

    /// Releases everything that this process holds for the run, and verifies it.
    async fn release(&mut self) -> Result<Certified, DriveError> {
        let _slot = slots::acquire(self.context.ledger.home()).await;
        // In the order of the list: a process tree comes before the directory it runs in.
        for held in std::mem::take(&mut self.held) {
            let resource = held.resource;
            match self.context.supervisor.release(held).await {
                Ok(_) => drop(self.released.insert(resource)),
                Err(error) => warn!(%error, "the first try of a release failed"),
            }
        }
        let (mut deadline, mut pause) = (None, FIRST_PAUSE);
        loop {
            if let Some(certificate) = self.check_and_release(&mut deadline).await? {
                return Ok(certificate);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Checks what is left of the run and releases it.
    ///
    /// Returns the certificate when nothing is left, or when the deadline has passed. The first
    /// call sets the deadline.
    async fn check_and_release(
        &self,
        deadline: &mut Option<Instant>,
    ) -> Result<Option<Certified>, LedgerError> {
        let run = self.journal.run();
        let certificate = self.certify().await?;
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + RELEASE_PATIENCE);
        if certificate.verified || Instant::now() > deadline {
            return Ok(Some(certificate));
        }
        // The next check finds what is left.
        match self.context.supervisor.release_run(run).await {
            Ok(_) => {}
            Err(error) if error.is_disk_full() => warn!(%error, "a release is not on record yet"),
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Checks what is left of the run. On a full disk, a resource that is verified gone counts as
    /// gone even if its record does not say so yet.
    async fn certify(&self) -> Result<Certified, LedgerError> {
        let RunContext { ledger, providers, .. } = &self.context;
        let records = ledger.records(&RecordFilter::of_run(self.journal.run())).await?;
        let is_gone = |record: &Record| ledger.is_disk_full() && self.released.contains(&record.id);
        let used = records.iter().map(|record| record.provider).collect();
        let open = records.iter().filter(|record| record.state.name().is_open());
        let left = open.filter(|record| !is_gone(record)).map(CertificateEntry::from);
        Ok(certify(providers, self.journal.run(), &used, left.collect()).await)
    }
}

/// Resumes frozen or stopped processes in a sandbox, so that they can receive the stop request.
/// Returns whether there were any.
async fn wake(sandbox: &dyn Sandbox) -> bool {
    match timeout(MARGIN, sandbox.wake()).await {
        Ok(Ok(was_asleep)) => return was_asleep,
        Ok(Err(error)) => warn!(%error, "the sandbox could not be woken; it is ended all the same"),
        Err(_) => warn!("the sandbox could not be woken in time; it is ended all the same"),
    }
    false
}

/// Does work in a sandbox, and wakes the sandbox repeatedly in the meantime.
///
/// A process that froze itself in one of its control groups continues where it was after a wake-up,
/// and may freeze itself in the next group. Returns `None` if a sandbox freezes itself again and
/// again: it gets nothing done, and would only use up the grace period.
async fn keep_awake<T>(sandbox: &dyn Sandbox, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let (mut wakes, mut pause) = (0, WAKE_PAUSE);
    while wakes <= MOST_WAKES {
        tokio::select! {
            done = &mut work => return Some(done),
            () = tokio::time::sleep(pause) => if wake(sandbox).await {
                (wakes, pause) = (wakes + 1, WAKE_PAUSE);
            } else {
                // A wake-up scans all processes of the machine. Where hundreds of runs end at once,
                // scans at a fixed rate would take all of its time.
                pause = (pause * 2).min(LONGEST_WAKE_PAUSE);
            },
        }
    }
    None
}

/// Adds what the providers that a run used still have of it to what is left on record.
async fn certify(
    providers: &Providers,
    run: RunId,
    used: &BTreeSet<ProviderName>,
    mut left: BTreeSet<CertificateEntry>,
) -> Certified {
    let mut all_listed = true;
    for provider in providers.iter().filter(|provider| used.contains(&provider.name())) {
        match provider.list(provider.kinds()).await {
            Ok(seen) => left.extend(
                seen.iter()
                    .filter(|one| labels::claimed_run(&one.labels) == Some(run))
                    .map(CertificateEntry::of),
            ),
            Err(error) => {
                warn!(%error, "what is left could not be listed");
                all_listed = false;
            }
        }
    }
    Certified { verified: all_listed && left.is_empty(), left: left.into_iter().collect() }
}
