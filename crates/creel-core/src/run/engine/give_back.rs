//! The way out, the same on every path: end the runtime, tear down, release, prove, conclude.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use creel_bridge::serve;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::clock::{millis, now_ms};
use crate::id::RunId;
use crate::labels;
use crate::ledger::write::WhenFull;
use crate::ledger::{Event, Ledger, LedgerError, RecordFilter};
use crate::provider::{ProviderName, Providers};
use crate::reap::Entry;
use crate::run::records::RecordsError;
use crate::run::{CauseClass, Certified, Connection, Phase, RunEvent, RunState, messages};
use crate::sandbox::{Command, Sandbox};
use crate::scope::Held;

use super::checklist::run;
use super::tail::Heard;
use super::{Drive, DriveError, Stopped, slots};

/// How long the runtime has to end by itself: it may have a database to close.
const GRACE: Duration = Duration::from_secs(10);
/// How much longer its end is waited for.
const MARGIN: Duration = Duration::from_secs(5);
/// How long creates without an answer, and releases that are under way, are waited for.
const RELEASE_PATIENCE: Duration = Duration::from_secs(30);
/// The first pause between two rounds of releasing.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl Drive {
    /// Gives everything back and records the outcome; `broken` is why nothing can be recorded.
    pub(super) async fn give_back(
        mut self,
        broken: Option<RecordsError>,
    ) -> Result<RunState, DriveError> {
        self.wake().await;
        self.leave_no_keys().await;
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
        self.write_ending(certificate).await?;
        let phase = self.journal.state().phase;
        messages::remove_all(self.means.ledger.home(), self.journal.run());
        info!(run = %self.journal.run(), %phase, "the run has ended");
        Ok(self.journal.state().clone())
    }

    /// Ends the runtime with grace and runs the teardown; neither changes the cause.
    async fn close_down(&mut self) -> Result<(), Stopped> {
        self.enter(Phase::Releasing).await?;
        let Some(sandbox) = self.sandbox.clone() else { return Ok(()) };
        if self.is_lost() {
            return self.connect(Connection::Offline).await;
        }
        if self.fills_the_disk() {
            // No grace for what may be filling the disk: every write of it takes from the space
            // that is kept for the way out.
            return self.connect(Connection::None).await;
        }
        let ended = !self.has_bridge || self.end_runtime(&sandbox).await?;
        let torn_down = self.tear_down(sandbox.as_ref()).await?;
        let answered = ended && torn_down;
        if !answered && !self.is_alive(sandbox.as_ref()).await {
            return self.note_lost().await;
        }
        self.connect(Connection::None).await
    }

    /// Lets go on what was frozen or stopped in the sandbox, so that it can hear that it ends.
    async fn wake(&self) {
        let Some(sandbox) = &self.sandbox else { return };
        match timeout(MARGIN, sandbox.wake()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(%error, "the sandbox could not be woken; it is ended all the same")
            }
            Err(_) => warn!("the sandbox could not be woken in time; it is ended all the same"),
        }
    }

    /// Returns whether the sandbox shows a sign of life. What does not in this time is not waited
    /// for: the run is over, and the sandbox ends next.
    async fn is_alive(&self, sandbox: &dyn Sandbox) -> bool {
        matches!(timeout(GRACE, sandbox.probe()).await, Ok(Ok(())))
    }

    /// Returns whether the sandbox was lost before the way out began.
    fn is_lost(&self) -> bool {
        self.journal.state().cause().is_some_and(|cause| cause.class == CauseClass::SandboxLost)
    }

    /// Notes that the sandbox was lost on the way out: beside the cause, if there is one. A run
    /// that had done its work has done it.
    async fn note_lost(&mut self) -> Result<(), Stopped> {
        self.connect(Connection::Offline).await?;
        if self.journal.state().cause().is_none() {
            return Ok(());
        }
        let cause =
            self.cause(CauseClass::SandboxLost, "the sandbox was lost while it was given back");
        self.record(RunEvent::CauseLatched { cause }).await
    }

    /// Ends the runtime; returns whether it was heard to end.
    async fn end_runtime(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<bool, Stopped> {
        let stop =
            serve::Command::Stop { grace_ms: u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX) };
        let told = timeout(GRACE, self.tell_bridge(sandbox.as_ref(), "stop", &stop)).await;
        if !matches!(told, Ok(Ok(()))) {
            warn!("the runtime could not be told to end; it ends with the sandbox");
            return Ok(false);
        }
        timeout(GRACE + MARGIN, self.hear_out(sandbox)).await.unwrap_or_else(|_| {
            warn!("the runtime did not end in time; it ends with the sandbox");
            Ok(false)
        })
    }

    /// Records the last words of the agent; returns whether the bridge was heard to end.
    async fn hear_out(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<bool, Stopped> {
        let mut course = self.course(Arc::clone(sandbox));
        while let Some(heard) = course.tail.heard.recv().await {
            match heard {
                Heard::Event(seq, event) => self.take_last_words(&mut course, seq, event).await?,
                Heard::BridgeEnded => return Ok(true),
                Heard::SandboxGone(_) => return Ok(false),
                Heard::Alive | Heard::Broken => {}
            }
        }
        Ok(false)
    }

    /// Runs the teardown; returns whether every step of it ended by itself.
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

    /// Leaves the sandbox standing, if the workflow wants that of a failure.
    async fn keeps(&mut self) -> Result<bool, DriveError> {
        let keep = self.workflow.on_failure.keep;
        let failed = self.journal.state().verdict() == Phase::Failed;
        let is_offline = self.journal.state().connection == Connection::Offline;
        let is_unfit = is_offline || self.fills_the_disk();
        if !failed || keep.is_zero() || self.held.is_empty() || is_unfit {
            return Ok(false);
        }
        if !self.removes_spool().await {
            warn!("what the agent said could not be removed from the sandbox, so it is not kept");
            return Ok(false);
        }
        // Its dead-man switch begins anew as well.
        self.means.supervisor.renew().await?;
        let lease_ms = millis(keep);
        let kept: Vec<_> =
            self.held.iter().map(|held| (held.resource, Event::Kept { lease_ms })).collect();
        self.means.ledger.append(&kept).await?;
        self.held.drain(..).for_each(Held::forget);
        let until_ms = now_ms().saturating_add(lease_ms);
        self.journal.record(RunEvent::Kept { until_ms }).await?;
        Ok(true)
    }

    /// Removes what bridges wrote in the sandbox: their spools have the agent's text as it was,
    /// with every secret in it. All of it that may be kept is in the log.
    async fn removes_spool(&self) -> bool {
        let Some(sandbox) = &self.sandbox else { return true };
        let attempts = 1..=self.journal.state().attempt;
        let place = sandbox.creel_directory();
        let spools = attempts.map(|attempt| format!("{place}/bridge-{attempt}"));
        let words = ["rm", "-rf", "--"].map(str::to_owned).into_iter().chain(spools);
        let removed = run(sandbox.as_ref(), &Command::new(words, GRACE)).await;
        removed.is_ok_and(|ran| ran.is_success())
    }

    /// Releases everything that this process holds for the run, and proves it.
    async fn release(&mut self) -> Result<Certified, DriveError> {
        let _turn = slots::take(self.means.ledger.home()).await;
        // In the order in which they were handed out: a tree before the directory it runs in.
        for held in std::mem::take(&mut self.held) {
            if let Err(error) = self.means.supervisor.release(held).await {
                warn!(%error, "not given back at the first try");
            }
        }
        let (mut deadline, mut pause) = (None, FIRST_PAUSE);
        loop {
            if let Some(certificate) = self.look_and_release(&mut deadline).await? {
                return Ok(certificate);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Looks what is left of the run and releases it; returns the certificate when nothing is, or
    /// when it was waited for long enough since the first look.
    async fn look_and_release(
        &self,
        deadline: &mut Option<Instant>,
    ) -> Result<Option<Certified>, LedgerError> {
        let run = self.journal.run();
        let certificate = certify(&self.means.ledger, &self.means.providers, run).await?;
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + RELEASE_PATIENCE);
        if certificate.verified || Instant::now() > deadline {
            return Ok(Some(certificate));
        }
        // What is left is what the next look finds.
        match self.means.supervisor.release_run(run).await {
            Ok(_) => {}
            Err(error) if error.is_disk_full() => warn!(%error, "a release is not on record yet"),
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

/// Looks whether anything of a run is left, on record or in the worlds.
///
/// # Errors
///
/// Fails when the ledger cannot be read.
pub async fn certify(
    ledger: &Ledger,
    providers: &Providers,
    run: RunId,
) -> Result<Certified, LedgerError> {
    let records = ledger.records(&RecordFilter::of_run(run)).await?;
    let used: BTreeSet<ProviderName> = records.iter().map(|record| record.provider).collect();
    let open = records.iter().filter(|record| record.state.name().is_open());
    let mut left: BTreeSet<Entry> = open
        .map(|record| Entry {
            provider: record.provider,
            kind: record.kind,
            id: record.state.object().unwrap_or(&record.name).to_owned(),
            name: record.name.as_str().into(),
        })
        .collect();
    let mut all_asked = true;
    for provider in providers.iter().filter(|provider| used.contains(&provider.name())) {
        match provider.list(provider.kinds()).await {
            Ok(seen) => left.extend(
                seen.iter()
                    .filter(|one| labels::claimed_run(&one.labels) == Some(run))
                    .map(Entry::of),
            ),
            Err(error) => {
                warn!(%error, "what is left could not be looked for");
                all_asked = false;
            }
        }
    }
    Ok(Certified { verified: all_asked && left.is_empty(), left: left.into_iter().collect() })
}
