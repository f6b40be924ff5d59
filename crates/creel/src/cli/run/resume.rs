//! `creel resume`: let a paused run go on, or take up one whose driver died.

use clap::Args;
use creel_core::ledger::{Ledger, OnOwnerDeath, RunRecord};
use creel_core::owner::Liveness;
use creel_core::run::Phase;
use creel_core::run::orders::{self, Order};
use creel_core::run::records::Journal;

use crate::app::{App, this_process};
use crate::cli::named_run::find_record;
use crate::output::{Exit, Failure};

use super::drive::{Errand, Stage, Start, perform};
use super::retry::refused;

/// Let a run go on: one that is paused, or one whose driver died
///
/// A run that a pause rule holds goes on with its next turn. A detached run
/// whose driver was killed is driven on by this process, from wherever it was:
/// nothing the agent did in the meantime is lost or happens twice.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel resume last
  creel resume run_0198c5")]
pub(crate) struct Resume {
    /// The run: its id, a beginning of it, or `last`
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
            Liveness::Dead => take_up(app, record).await,
            Liveness::Alive | Liveness::Unknown => {
                if record.state.phase != Phase::Paused {
                    return Err(refused(&format!("the run is {}, not paused", record.state.phase)));
                }
                let _ = orders::place(&ledger, record.id, Order::Resume).await?;
                app.printer.say("told its driver to go on");
                Ok(Exit::Done)
            }
        }
    }
}

/// Drives a run on whose driver died.
async fn take_up(app: &App, record: RunRecord) -> Result<Exit, Failure> {
    if record.on_owner_death == OnOwnerDeath::Release {
        let message = "its driver died, and what it held is being given back";
        return Err(
            refused(message).hint("creel reconcile finishes that; creel retry begins again")
        );
    }
    inherit(app, record, Start::GoOn).await
}

/// Returns whether this process has what a run's workflow refers to.
pub(crate) async fn can_take_up(ledger: &Ledger, record: &RunRecord) -> bool {
    Errand::of_run(ledger, record.id).await.is_ok()
}

/// Ends a run whose driver died, and gives back what it held.
pub(crate) async fn call_off(app: &App, record: RunRecord) -> Result<Exit, Failure> {
    match inherit(app, record, Start::CallOff).await? {
        // That it was cancelled is what was asked for.
        Exit::Cancelled => Ok(Exit::Done),
        other => Ok(other),
    }
}

/// Takes over a run and what its dead driver held, and drives it from there.
async fn inherit(app: &App, record: RunRecord, start: Start) -> Result<Exit, Failure> {
    let stage = Stage::set(app, OnOwnerDeath::Hold).await?;
    let me = this_process()?;
    let errand = Errand::of_run(&stage.ledger, record.id).await?;
    let journal = Journal::take_up(&stage.ledger, record.id, &record.owner.owner, &me).await?;
    let journal = journal.ok_or_else(|| refused("another process has just taken the run"))?;
    stage.inherit(&record, &me).await?;
    perform(app, &stage, errand.workflow, journal, (start, OnOwnerDeath::Hold)).await
}
