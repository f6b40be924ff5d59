//! `creel resume`: continues a paused run, or takes over one whose driver died.

use clap::Args;
use creel_ledger::event_log::Journal;
use creel_ledger::{Ledger, OnOwnerDeath, RunRecord};
use creel_model::owner::Liveness;
use creel_model::run::Phase;
use creel_model::run::RunCommand;
use creel_run::commands as orders;

use crate::app::{App, this_process};
use crate::cli::find_run::find_record;
use crate::output::{Exit, Failure};

use super::drive::{DriveContext, RunRequest, Start, perform};
use super::retry::refused;

/// Resume a paused run, or a detached run whose driver died
///
/// A paused run continues with its next turn. If the driver of a detached run has
/// died, this process takes over where it stopped. Nothing that the agent did in
/// the meantime is lost or repeated.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel resume last
  creel resume run_0198c5")]
pub(crate) struct Resume {
    /// The run: an id, a prefix of an id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
}

impl Resume {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let ledger = app.ledger().await?;
        let record = find_record(&ledger, &self.run).await?;
        if record.state.phase.is_final() {
            let message = format!("the run has ended: it {}", record.state.phase);
            return Err(refused(&message).hint("creel retry makes another attempt"));
        }
        match record.owner_liveness() {
            Liveness::Dead => take_over(app, record).await,
            Liveness::Alive | Liveness::Unknown => {
                if record.state.phase != Phase::Paused {
                    return Err(refused(&format!("the run is {}, not paused", record.state.phase)));
                }
                let _ = orders::place(&ledger, record.id, RunCommand::Resume).await?;
                app.printer.say("asked its driver to continue");
                Ok(Exit::Done)
            }
        }
    }
}

/// Continues a run whose driver died.
async fn take_over(app: &App, record: RunRecord) -> Result<Exit, Failure> {
    if record.on_owner_death == OnOwnerDeath::Release {
        let message = "its driver died, and what it held is being released";
        return Err(refused(message)
            .hint("creel reconcile finishes that; creel retry starts another attempt"));
    }
    inherit(app, record, Start::Continue).await
}

/// Returns whether this process can resolve the references of a run's workflow.
pub(crate) async fn can_take_over(ledger: &Ledger, record: &RunRecord) -> bool {
    RunRequest::of_run(ledger, record.id).await.is_ok()
}

/// Ends a run whose driver died, and releases what it held.
pub(crate) async fn cancel_orphaned(app: &App, record: RunRecord) -> Result<Exit, Failure> {
    match inherit(app, record, Start::Cancel).await? {
        // The caller asked for the cancellation, so it is a success.
        Exit::Cancelled => Ok(Exit::Done),
        other => Ok(other),
    }
}

/// Takes over a run and what its dead driver held, and drives it from there.
async fn inherit(app: &App, record: RunRecord, start: Start) -> Result<Exit, Failure> {
    let context = DriveContext::open(app, OnOwnerDeath::Hold).await?;
    let me = this_process()?;
    let request = RunRequest::of_run(&context.ledger, record.id).await?;
    let journal = Journal::claim(&context.ledger, record.id, &record.owner.owner, &me).await?;
    let journal = journal.ok_or_else(|| refused("another process has just taken the run"))?;
    context.inherit(&record, &me).await?;
    perform(app, &context, request.workflow, journal, (start, OnOwnerDeath::Hold)).await
}
