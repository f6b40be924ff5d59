//! `creel cancel`: requests the end of a run.

use clap::Args;
use creel_ledger::OnOwnerDeath;
use creel_model::owner::Liveness;
use creel_model::run::RunCommand;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::find_run::{find_record, ledger_of};
use super::run::resume::{can_take_over, cancel_orphaned};
use super::run_request::place;

/// Cancel a run and release its resources
///
/// Records a cancel request for the process that drives the run, and returns
/// without waiting for the end. Follow the run with `creel events RUN --follow`.
/// If the driver of a detached run has died, this command ends the run itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel cancel last
  creel cancel run_0198c0ff && creel events run_0198c0ff --follow")]
pub(crate) struct Cancel {
    /// The run: an id, a prefix of an id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
}

impl Cancel {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let ledger = ledger_of(app, &self.run).await?;
        let record = find_record(&ledger, &self.run).await?;
        let is_held = record.on_owner_death == OnOwnerDeath::Hold;
        let is_over = record.state.phase.is_final();
        let is_orphaned = is_held && !is_over && record.owner_liveness() == Liveness::Dead;
        // If its references cannot be resolved here, this process cannot tear it down; its lease
        // ends it.
        if is_orphaned && can_take_over(&ledger, &record).await {
            return cancel_orphaned(app, record).await;
        }
        place(app, &self.run, RunCommand::Cancel).await
    }
}
