//! What every mutating command does besides its own work: finish what dead owners left.

use creel_core::reap::{ItemReport, Outcome};
use creel_ledger::{Ledger, LedgerError};
use creel_model::provider::Providers;

use crate::app::App;

/// Releases what dead owners left, and reports it; never fails the command itself.
pub(crate) async fn release_orphans(app: &App, ledger: &Ledger, providers: &Providers) {
    if let Err(error) = release_orphans_first(app, ledger, providers).await {
        app.printer.warn(&format!("warning: reconcile did not finish: {error}"));
    }
}

/// As [`release_orphans`], for commands that create: a ledger that fails here would fail them too.
pub(crate) async fn release_orphans_first(
    app: &App,
    ledger: &Ledger,
    providers: &Providers,
) -> Result<(), LedgerError> {
    let Ok(reconciler) = app.reconciler(ledger, providers) else { return Ok(()) };
    let status = reconciler.finish().await?;
    if status.released() > 0 {
        let plural = if status.released() == 1 { "" } else { "s" };
        app.printer.say(&format!("also released {} orphaned resource{plural}", status.released()));
    }
    for item in status.items.iter().filter(|item| is_kept(item)) {
        let reason = item.reason.as_deref().unwrap_or_default();
        app.printer.say(&format!("{} {}: {reason}", item.kind, item.name));
    }
    if status.runs_closed > 0 {
        app.printer.say(&format!("runs closed whose driver died: {}", status.runs_closed));
    }
    Ok(())
}

/// Returns whether something on record was left, which the user should see.
fn is_kept(item: &ItemReport) -> bool {
    matches!(item.result, Outcome::Spared | Outcome::Quarantined)
}
