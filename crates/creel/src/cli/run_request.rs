//! Requests to the driver of a run, shared by `cancel` and `message`.

use creel_ledger::Ledger;
use creel_model::id::RunId;
use creel_model::owner::Liveness;
use creel_model::run::RunCommand;
use creel_run::commands as orders;
use creel_run::commands::Receipt;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure};

use super::find_run::{find, ledger_of};

#[derive(Serialize)]
struct RunRequestJson {
    version: u32,
    run: RunId,
    order: &'static str,
    key: String,
    poked: bool,
}

/// Places a request for the driver of the named run, and reports it.
pub(crate) async fn place(app: &App, name: &str, request: RunCommand) -> Result<Exit, Failure> {
    let ledger = ledger_of(app, name).await?;
    let run = find(&ledger, name).await?;
    let kind = request.name();
    let receipt = orders::place(&ledger, run, request).await?;
    report(app, &ledger, (run, kind), receipt).await
}

/// Places a message for the agent of the named run, and reports it.
pub(crate) async fn place_message(
    app: &App,
    name: &str,
    text: &str,
    request: Option<&str>,
) -> Result<Exit, Failure> {
    let ledger = ledger_of(app, name).await?;
    let run = find(&ledger, name).await?;
    let receipt = orders::place_message(&ledger, run, text, request).await?;
    report(app, &ledger, (run, "message"), receipt).await
}

async fn report(
    app: &App,
    ledger: &Ledger,
    (run, kind): (RunId, &'static str),
    receipt: Receipt,
) -> Result<Exit, Failure> {
    if app.printer.json {
        let (key, poked) = (receipt.key, receipt.poked);
        app.printer.json(&RunRequestJson { version: 1, run, order: kind, key, poked });
    } else if receipt.poked {
        app.printer.say(&format!("{kind}: sent to the driver of {run}"));
    } else if is_driven(ledger, run).await? {
        app.printer.say(&format!("{kind}: left for the driver of {run}, which reads it within 5s"));
    } else {
        let resume = format!("creel resume {run}");
        app.printer.say(&format!("{kind}: left for later; {run} has no driver now: {resume}"));
    }
    Ok(Exit::Done)
}

/// Returns whether a run may have a live driver.
async fn is_driven(ledger: &Ledger, run: RunId) -> Result<bool, Failure> {
    let record = ledger.run(run).await?;
    Ok(record.is_some_and(|record| record.owner_liveness() != Liveness::Dead))
}
