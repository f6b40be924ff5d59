//! Deletes that were accepted and did not finish, as commands show them.

use creel_ledger::{Ledger, UnfinishedDelete};
use creel_model::provider::show_date;

use crate::app::App;
use crate::output::table;

/// Makes the table of unfinished deletes.
pub(crate) fn deletes_table(deletes: &[UnfinishedDelete]) -> table::Table {
    let mut table = table::new(&["DELETED", "ID", "NAME", "KEPT UNTIL", "REASON"]);
    for delete in deletes {
        table.add_row([
            delete.kind.to_string(),
            table::short_id(&delete.id).to_owned(),
            delete.name.to_string(),
            delete.kept_until.map(show_date).unwrap_or_else(|| "unknown".to_owned()),
            delete.reason.to_string(),
        ]);
    }
    table
}

/// Reads the unfinished deletes of a ledger; warns if they cannot be read.
pub(crate) async fn read(app: &App, ledger: Option<&Ledger>) -> Vec<UnfinishedDelete> {
    let Some(ledger) = ledger else { return Vec::new() };
    match ledger.unfinished_deletes().await {
        Ok(deletes) => deletes,
        Err(error) => {
            app.printer.warn(&format!("warning: unfinished deletes are not shown: {error}"));
            Vec::new()
        }
    }
}

/// Reports unfinished deletes, if there are any.
pub(crate) fn mention(app: &App, deletes: &[UnfinishedDelete]) {
    if deletes.is_empty() {
        return;
    }
    app.printer.say(&format!(
        "{} deleted and not gone: the service keeps them, and they may cost money; \
         creel reconcile lists them",
        deletes.len()
    ));
}
