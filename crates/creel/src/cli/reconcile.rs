//! `creel reconcile`: make ledger and world agree again.

use clap::Args;
use creel_core::failure::Code;
use creel_core::reconcile::Status;
use jiff::Timestamp;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, table};

use super::report::{incomplete_audit, items_table};
use super::unfinished::deletes_table;

/// Finish what was interrupted: release orphans, close records
///
/// Looks at every open record and at everything that carries this ledger's
/// labels. What a dead owner left is released and verified, what is quarantined
/// is tried once more; creates whose answer never came are searched for until
/// they can no longer land, and until then the exit code is 3. Running it twice
/// changes nothing the second time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel reconcile
  creel reconcile --json | jq .open_intents")]
pub(crate) struct Reconcile {}

#[derive(Serialize)]
struct ReconcileJson<'a> {
    version: u32,
    #[serde(flatten)]
    status: &'a Status,
}

impl Reconcile {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let providers = app.providers(&[])?;
        let ledger = app.ledger().await?;
        let status = app.reconciler(&ledger, &providers)?.round().await?;
        if app.printer.json {
            app.printer.json(&ReconcileJson { version: 1, status: &status });
        } else {
            show(app, &status);
        }
        verdict(&status)
    }
}

fn show(app: &App, status: &Status) {
    if !status.items.is_empty() {
        app.printer.data(&table::render(&items_table(&status.items)));
    }
    if !status.unfinished.is_empty() {
        app.printer.data(&table::render(&deletes_table(&status.unfinished)));
    }
    let parts = [
        (status.examined, "records examined"),
        (status.released(), "released"),
        (status.kept, "kept by their owners"),
        (status.recovered, "found without a record"),
        (status.open_intents, "creates still unanswered"),
        (status.closed_intents, "creates that came to nothing"),
        (status.lost, "vanished by themselves"),
        (status.granted_leases, "leases granted after a clock jump"),
        (status.left_quarantine, "gone from quarantine"),
        (status.quarantined, "quarantined"),
        (status.converged, "unfinished deletes finished"),
        (status.unfinished.len(), "deleted and kept by their provider"),
        (status.overdue, "of them overdue"),
        (status.runs_closed, "runs closed"),
        (status.runs_waiting, "runs wait to be closed"),
    ];
    let told: Vec<String> = parts
        .iter()
        .enumerate()
        .filter(|(place, (count, _))| *place < 2 || *count > 0)
        .map(|(_, (count, what))| format!("{count} {what}"))
        .collect();
    app.printer.say(&told.join(", "));
}

fn verdict(status: &Status) -> Result<Exit, Failure> {
    if let Some(unreachable) = status.unreachable.first() {
        return Err(Failure::new(Code::Unreachable, Exit::Provider, unreachable.error.clone())
            .hint("creel doctor shows what was tried and what answered")
            .after_answer());
    }
    if status.audit_incomplete > 0 {
        return Err(incomplete_audit(status.audit_incomplete).after_answer());
    }
    if status.is_settled() && status.quarantined == 0 {
        return Ok(Exit::Done);
    }
    let mut failure = Failure::new(Code::NotGone, Exit::Unverified, unsettled(status));
    if status.is_left() {
        failure =
            failure.hint("creel ledger lists what is left; creel rm res_… tries one of it again");
    }
    if !status.waiting.is_empty() {
        failure = failure.hint("creel reconcile finds what lands late; run it again until then");
    }
    Err(failure.after_answer())
}

/// Says what is left, and what is waited for until when.
fn unsettled(status: &Status) -> String {
    let mut parts = Vec::new();
    if status.is_left() {
        parts.push("something is not verified gone, or quarantined".to_owned());
    }
    if let (Some(first), Some(until)) = (status.waiting.first(), last_end(status)) {
        let others = match status.waiting.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        parts.push(format!(
            "{} {}{others} may still land: a create was not answered, and is searched for until \
             {until:.0}",
            first.kind, first.name
        ));
    }
    if status.runs_waiting > 0 {
        let (runs, wait) =
            if status.runs_waiting == 1 { ("run", "waits") } else { ("runs", "wait") };
        let what = if parts.is_empty() { "for its records" } else { "for that" };
        parts.push(format!("{} {runs} {wait} {what}", status.runs_waiting));
    }
    parts.join("; ")
}

/// Returns when the last search ends.
fn last_end(status: &Status) -> Option<Timestamp> {
    status.waiting.iter().map(|waiting| waiting.until).max()
}
