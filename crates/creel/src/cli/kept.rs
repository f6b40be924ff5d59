//! What a run kept for inspection: how to enter it, and how to release it at once.

use creel_ledger::{Ledger, LedgerError, Record, RecordFilter};
use creel_model::id::RunId;

use crate::app::App;

/// Returns how to enter and how to release what a run kept, one sentence each.
///
/// The list is empty if nothing of it exists any more.
pub(crate) async fn access_hints(
    app: &App,
    ledger: &Ledger,
    run: RunId,
) -> Result<Vec<String>, LedgerError> {
    let mut records = ledger.records(&RecordFilter::of_run(run)).await?;
    records.retain(|record| record.state.name().is_open());
    // A provider that is misconfigured by now cannot say how to enter its objects; others can.
    let access_hint = |record: &Record| {
        let providers = app.providers(&[record.provider]).ok()?;
        let provider = providers.get(record.provider).ok()?;
        provider.access_hint(record.kind, record.state.object()?)
    };
    let mut hints: Vec<String> = records.iter().filter_map(access_hint).collect();
    if !records.is_empty() {
        // A process is released before the directory it runs in.
        let ids: Vec<String> = records.iter().rev().map(|record| record.id.to_string()).collect();
        hints.push(format!("release it: creel rm {}", ids.join(" ")));
    }
    Ok(hints)
}
