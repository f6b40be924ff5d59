//! `creel cancel`: ask for the end of a run.

use clap::Args;
use creel_core::run::Order;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::order::place;

/// End a run, and have everything it took given back
///
/// Leaves an order for whoever drives the run, and returns when the order is on
/// record. `creel events RUN --follow` shows what comes of it.
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
        place(app, &self.run, Order::Cancel).await
    }
}
