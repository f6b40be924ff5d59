//! `creel cancel`: ask for the end of a run.

use clap::Args;
use creel_core::ledger::OnOwnerDeath;
use creel_core::owner::Liveness;
use creel_core::run::Order;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::named_run::{find_record, ledger_of};
use super::order::place;
use super::run::resume::{call_off, can_take_up};

/// End a run, and have everything it took given back
///
/// Leaves an order for whoever drives the run, and returns when the order is on
/// record. `creel events RUN --follow` shows what comes of it. A detached run whose
/// driver died is ended by this command itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel cancel last
  creel cancel run_0198c0ff && creel events run_0198c0ff --follow")]
pub(crate) struct Cancel {
    /// The run: its id, the beginning of it, or `last`
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
        // Without what its workflow refers to, nobody can tear it down: its lease ends it then.
        if is_orphaned && can_take_up(&ledger, &record).await {
            return call_off(app, record).await;
        }
        place(app, &self.run, Order::Cancel).await
    }
}
