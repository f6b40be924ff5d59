//! What every mutating command does besides its own work: finish what others left.

use creel_core::ledger::Ledger;
use creel_core::provider::Providers;

use crate::app::App;

/// Gives back what dead owners left, and says so; never fails the command itself.
pub(crate) async fn settle(app: &App, ledger: &Ledger, providers: &Providers) {
    let round = match app.reconciler(ledger, providers) {
        Ok(reconciler) => reconciler.finish().await,
        Err(_) => return,
    };
    match round {
        Ok(status) if status.released() > 0 => {
            app.printer.say(&format!("also gave back {} orphaned", status.released()));
        }
        Ok(_) => {}
        Err(error) => app.printer.warn(&format!("warning: reconcile did not finish: {error}")),
    }
}
