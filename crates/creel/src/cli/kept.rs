//! What a run kept for inspection: how to enter it, and how to release it at once.

use creel_ledger::{Ledger, LedgerError, Record, RecordFilter};
use creel_model::id::RunId;
use creel_model::provider::Kind;

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
    let mut hints: Vec<String> =
        records.iter().filter_map(|record| access_hint(app, record)).collect();
    if !records.is_empty() {
        // A process is released before the directory it runs in.
        let ids: Vec<String> = records.iter().rev().map(|record| record.id.to_string()).collect();
        hints.push(format!("release it: creel rm {}", ids.join(" ")));
    }
    Ok(hints)
}

/// Returns how to enter one resource, if that is possible.
fn access_hint(app: &App, record: &Record) -> Option<String> {
    let object = record.state.object()?;
    match record.kind {
        Kind::Directory => {
            let directory = app.process().directory(object)?;
            Some(format!("enter it: cd {}", directory.display()))
        }
        Kind::Container => Some(format!("enter it: docker exec -it {object} sh")),
        Kind::Sandbox => Some(format!("enter it: it is sandbox {object} at Daytona")),
        _ => None,
    }
}
