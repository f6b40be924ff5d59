//! Orders for whoever drives a run: what `cancel` and `message` share.

use creel_core::id::RunId;
use creel_core::ledger::Ledger;
use creel_core::owner::Liveness;
use creel_core::run::Order;
use creel_core::run::orders::{self, Receipt};
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::named_run::{find, ledger_of};

#[derive(Serialize)]
struct OrderJson {
    version: u32,
    run: RunId,
    order: &'static str,
    key: String,
    poked: bool,
}

/// Leaves an order for whoever drives the named run, and says so.
pub(crate) async fn place(app: &App, name: &str, order: Order) -> Result<Exit, Failure> {
    let ledger = ledger_of(app, name).await?;
    let run = find(&ledger, name).await?;
    let kind = order.name();
    let receipt = orders::place(&ledger, run, order).await?;
    tell(app, &ledger, (run, kind), receipt).await
}

/// Leaves a message for the agent of the named run, and says so.
pub(crate) async fn place_message(
    app: &App,
    name: &str,
    text: &str,
    request: Option<&str>,
) -> Result<Exit, Failure> {
    let ledger = ledger_of(app, name).await?;
    let run = find(&ledger, name).await?;
    let receipt = orders::place_message(&ledger, run, text, request).await?;
    tell(app, &ledger, (run, "message"), receipt).await
}

async fn tell(
    app: &App,
    ledger: &Ledger,
    (run, kind): (RunId, &'static str),
    receipt: Receipt,
) -> Result<Exit, Failure> {
    if app.printer.json {
        let (key, poked) = (receipt.key, receipt.poked);
        app.printer.json(&OrderJson { version: 1, run, order: kind, key, poked });
    } else if receipt.poked {
        app.printer.say(&format!("{kind}: told whoever drives {run}"));
    } else if is_driven(ledger, run).await? {
        app.printer.say(&format!("{kind}: left for whoever drives {run}, who looks every 5s"));
    } else {
        let resume = format!("creel resume {run}");
        app.printer.say(&format!("{kind}: left for later; nobody drives {run} now: {resume}"));
    }
    Ok(Exit::Done)
}

/// Returns whether somebody may be driving a run.
async fn is_driven(ledger: &Ledger, run: RunId) -> Result<bool, Failure> {
    let record = ledger.run(run).await?;
    Ok(record.is_some_and(|record| record.owner_liveness() != Liveness::Dead))
}
