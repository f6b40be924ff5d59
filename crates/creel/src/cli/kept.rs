//! What a run kept for people to look at: how to enter it, and how to give it back at once.

use creel_core::id::RunId;
use creel_core::ledger::{Ledger, LedgerError, Record, RecordFilter};
use creel_core::provider::Kind;

use crate::app::App;

/// Returns how to enter what a run kept, and how to give it back, one sentence each; none where
/// nothing of it stands.
pub(crate) async fn ways(
    app: &App,
    ledger: &Ledger,
    run: RunId,
) -> Result<Vec<String>, LedgerError> {
    let mut records = ledger.records(&RecordFilter::of_run(run)).await?;
    records.retain(|record| record.state.name().is_open());
    let mut ways: Vec<String> = records.iter().filter_map(|record| entrance(app, record)).collect();
    if !records.is_empty() {
        // What runs goes before what it runs in.
        let ids: Vec<String> = records.iter().rev().map(|record| record.id.to_string()).collect();
        ways.push(format!("give it back: creel rm {}", ids.join(" ")));
    }
    Ok(ways)
}

/// Returns the way into one thing, if it can be entered.
fn entrance(app: &App, record: &Record) -> Option<String> {
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
