//! Drives a run in this process, from its record to its last line of output.

use std::collections::BTreeMap;
use std::time::Duration;

use creel_core::scope::{AcquireError, Supervisor};
use creel_ledger::event_log::Journal;
use creel_ledger::{
    Ledger, LedgerError, NewRun, OnOwnerDeath, OwnerRecord, RecordFilter, RunRecord, WorkflowRecord,
};
use creel_model::id::RunId;
use creel_model::provider::Providers;
use creel_model::run::RunCommand;
use creel_model::run::{AttemptFrom, Phase, RunState};
use creel_model::task;
use creel_run::RunReport;
use creel_run::commands::CommandInbox;
use creel_run::engine::{Drive, DriveError, RunContext, RunEnd, RunInbox};
use creel_run::sandbox::Sandboxes;
use creel_run::workflow::{Resolved, Source};
use creel_sanitise as sanitise;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::app::{App, command_name, providers_of, this_process};
use crate::bridge;
use crate::cli::kept;
use crate::cli::orphans::release_orphans_first;
use crate::cli::watchdog;
use crate::output::{Exit, Failure};
use crate::shutdown::{Shutdown, exit_at_once};

use super::check::resolve;
use super::live::LiveOutput;

/// Delay before requests are polled again after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of queued requests.
const QUEUE: usize = 64;

/// A valid workflow with its references resolved.
#[derive(Debug)]
pub(super) struct RunRequest {
    pub(super) source: Source,
    pub(super) inputs: BTreeMap<String, String>,
    pub(super) workflow: Resolved,
}

impl RunRequest {
    /// Parses a workflow and resolves its references from this process's environment.
    pub(super) fn new(source: Source, inputs: &[(String, String)]) -> Result<Self, Failure> {
        let (_, workflow) = resolve(&source, inputs)?;
        // Before anything of the workflow is stored or shown.
        sanitise::remember(&workflow.known_secrets());
        let inputs = inputs.iter().cloned().collect();
        Ok(Self { source, inputs, workflow })
    }

    /// Parses the workflow of a run that is on record, and resolves its references again.
    pub(super) async fn of_run(ledger: &Ledger, run: RunId) -> Result<Self, Failure> {
        let kept = ledger.workflow_of(run).await?.ok_or(LedgerError::UnknownRun { run })?;
        let inputs: Vec<(String, String)> = kept.inputs.into_iter().collect();
        Self::new(Source { name: kept.source_name.to_string(), text: kept.source }, &inputs)
    }
}

/// How an attempt begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    /// As a new attempt.
    Attempt(AttemptFrom),
    /// Where the dead driver of an attempt under way stopped.
    Continue,
    /// With the end of an attempt whose driver died.
    Cancel,
}

/// The resources that this process needs to drive a run.
pub(super) struct DriveContext {
    pub(super) ledger: Ledger,
    providers: Providers,
    supervisor: Supervisor,
    sandboxes: Sandboxes,
}

impl DriveContext {
    /// Opens everything, finishes what others left, and starts the watchdog if one is needed.
    pub(super) async fn open(app: &App, on_owner_death: OnOwnerDeath) -> Result<Self, Failure> {
        let connections = app.connect(&[], None)?;
        let providers = providers_of(&connections);
        let ledger = app.ledger().await?;
        release_orphans_first(app, &ledger, &providers).await.map_err(AcquireError::Ledger)?;
        if on_owner_death == OnOwnerDeath::Release {
            watchdog::start(app)?;
        }
        let supervisor = Supervisor::new(ledger.clone(), providers.clone(), &command_name())
            .map_err(|error| Failure::internal("cannot read /proc", &error))?
            .with_options(app.reap_options());
        let sandboxes = connections.into_iter().map(|connected| connected.sandboxes).collect();
        let sandboxes = Sandboxes::new(bridge::PROGRAM, sandboxes);
        Ok(Self { ledger, providers, supervisor, sandboxes })
    }

    /// Takes over what the dead driver of a run held for it.
    pub(super) async fn inherit(&self, run: &RunRecord, me: &OwnerRecord) -> Result<(), Failure> {
        let records = self.ledger.records(&RecordFilter::of_run(run.id)).await?;
        let open = records.iter().filter(|record| record.state.name().is_open());
        let ids: Vec<_> = open.map(|record| record.id).collect();
        self.ledger.take_over(&ids, &run.owner.owner, me).await?;
        Ok(())
    }

    fn run_context(&self, on_owner_death: OnOwnerDeath) -> RunContext {
        RunContext {
            ledger: self.ledger.clone(),
            supervisor: self.supervisor.clone(),
            providers: self.providers.clone(),
            sandboxes: self.sandboxes.clone(),
            on_owner_death,
        }
    }
}

/// Records a new run and drives it to its end.
pub(super) async fn new_run(
    app: &App,
    request: RunRequest,
    on_owner_death: OnOwnerDeath,
    in_background: bool,
) -> Result<Exit, Failure> {
    let context = DriveContext::open(app, on_owner_death).await?;
    let run = RunId::new();
    let new = NewRun {
        id: run,
        name: request.workflow.name.as_str().into(),
        provider: request.workflow.sandbox.provider,
        owner: this_process()?,
        on_owner_death,
        workflow: WorkflowRecord {
            source_name: request.source.name.into(),
            source: request.source.text,
            inputs: request.inputs,
        },
    };
    let journal = Journal::begin(&context.ledger, &new).await?;
    if in_background {
        super::detach::report_to_parent(app, run);
    }
    let start = Start::Attempt(AttemptFrom::Scratch);
    perform(app, &context, request.workflow, journal, (start, on_owner_death)).await
}

/// Drives an attempt to its end, and reports the outcome.
pub(super) async fn perform(
    app: &App,
    context: &DriveContext,
    workflow: Resolved,
    journal: Journal,
    (start, on_owner_death): (Start, OnOwnerDeath),
) -> Result<Exit, Failure> {
    let run = journal.run();
    let lease = workflow.sandbox.lease;
    let keep_alive = context.supervisor.keep_alive(creel_run::engine::renewal(lease));
    let live = LiveOutput::show(app, &journal);
    let (requests, helpers) = receive_requests(app, &context.ledger, run, on_owner_death)?;
    let drive = Drive::new(context.run_context(on_owner_death), workflow, journal, requests);
    let ended = match start {
        Start::Attempt(from) => drive.run(from).await,
        Start::Continue => drive.resume().await,
        Start::Cancel => drive.cancel_orphaned().await,
    };
    keep_alive.abort();
    helpers.iter().for_each(JoinHandle::abort);
    live.finish().await;
    conclude(app, context, run, ended).await
}

/// Receives signals and the requests of other processes.
fn receive_requests(
    app: &App,
    ledger: &Ledger,
    run: RunId,
    on_owner_death: OnOwnerDeath,
) -> Result<(RunInbox, Vec<JoinHandle<()>>), Failure> {
    let internal = |error: std::io::Error| Failure::internal("cannot listen for signals", &error);
    let cancel = CancellationToken::new();
    let mut shutdown = Shutdown::listen().map_err(internal)?;
    let (token, printer) = (cancel.clone(), app.printer.clone());
    // A held run has no watchdog: another process may take it over.
    let has_watchdog = on_owner_death == OnOwnerDeath::Release;
    let signals = task::background(async move {
        shutdown.requested().await;
        printer.say(match has_watchdog {
            true => {
                "interrupted: releasing everything; \
                     press Ctrl-C again to leave that to the watchdog"
            }
            false => {
                "interrupted: releasing everything; a second signal leaves that to \
                      `creel resume`, `creel cancel` or the end of the lease"
            }
        });
        token.cancel();
        shutdown.requested().await;
        exit_at_once();
    });
    let (sender, incoming) = mpsc::channel(QUEUE);
    let owner = this_process()?.owner;
    let inbox = CommandInbox::open(ledger, &owner).map_err(internal)?;
    let token = cancel.clone();
    let reader = task::background(async move {
        let mut requests = inbox.of(run);
        loop {
            let placed = match requests.next().await {
                Ok(placed) => placed,
                Err(error) => {
                    // A busy ledger is available again later.
                    warn!(%error, "pending commands could not be read");
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            if placed.command == RunCommand::Cancel {
                // Best effort: a run that ends takes no more requests.
                let _ = requests.take(&placed.key).await;
                token.cancel();
            } else if sender.send(placed).await.is_err() {
                return;
            }
        }
    });
    Ok((RunInbox { incoming, cancel }, vec![signals, reader]))
}

async fn conclude(
    app: &App,
    context: &DriveContext,
    run: RunId,
    ended: Result<RunEnd, DriveError>,
) -> Result<Exit, Failure> {
    let RunEnd { state, audit_incomplete } = ended?;
    let record = context.ledger.run(run).await?;
    if app.printer.json {
        if let Some(record) = record {
            // The row lacks an end for which there was no space.
            let record = RunRecord { state: state.clone(), ..record };
            let audit_incomplete = Some(audit_incomplete).filter(|count| *count > 0);
            app.printer.json(&RunReport { audit_incomplete, ..RunReport::of(&record) });
        }
    } else {
        let hints = match state.kept_until_ms {
            Some(_) => kept::access_hints(app, &context.ledger, run).await?,
            None => Vec::new(),
        };
        super::live::summarise(app, run, &state, &hints);
    }
    if audit_incomplete > 0 {
        let failure = Failure::incomplete_audit(audit_incomplete);
        let exit = failure.exit.and(exit_of(&state));
        return Err(failure.exiting(exit).after_output());
    }
    Ok(exit_of(&state))
}

/// Returns the exit code of a run that has ended.
pub(super) fn exit_of(state: &RunState) -> Exit {
    let outcome = match state.phase {
        Phase::Succeeded => Exit::Done,
        Phase::Cancelled => Exit::Cancelled,
        _ => Exit::Failed,
    };
    let is_kept = state.kept_until_ms.is_some();
    let verified = state.certificate.as_ref().is_some_and(|certificate| certificate.verified);
    if verified || is_kept { outcome } else { Exit::Unverified.and(outcome) }
}
