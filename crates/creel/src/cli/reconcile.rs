//! `creel reconcile`: makes the ledger and the providers agree again.

use clap::Args;
use creel_core::reconcile::Status;
use creel_model::failure::Code;
use jiff::Timestamp;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, table};

use super::report::items_table;
use super::unfinished::deletes_table;

/// Finish interrupted cleanup: release orphans and close records
///
/// Checks every open record and every resource with this ledger's labels.
/// Releases what dead owners left, verifies that it is gone, and retries
/// quarantined resources. A create without a response may still complete; creel
/// searches for it until that is impossible, and exits with 3 until then. Running
/// the command again is safe.
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
    let shown: Vec<String> = parts
        .iter()
        .enumerate()
        .filter(|(place, (count, _))| *place < 2 || *count > 0)
        .map(|(_, (count, what))| format!("{count} {what}"))
        .collect();
    app.printer.say(&shown.join(", "));
}

fn verdict(status: &Status) -> Result<Exit, Failure> {
    if let Some(unreachable) = status.unreachable.first() {
        return Err(Failure::new(Code::Unreachable, Exit::Provider, unreachable.error.clone())
            .hint("creel doctor shows what was tried and what answered")
            .after_output());
    }
    if status.audit_incomplete > 0 {
        return Err(Failure::incomplete_audit(status.audit_incomplete).after_output());
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
    Err(failure.after_output())
}

/// Describes what is left, and what is waited for until when.
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
