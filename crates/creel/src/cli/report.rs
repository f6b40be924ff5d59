//! Shows the outcome of releases, and maps it to an exit code.

use std::time::Duration;

use comfy_table::Color;
use creel_core::reap::{ItemReport, Outcome, Report};
use creel_model::failure::Code;
use creel_model::provider::show_date;
use serde::Serialize;

use crate::app::{App, UnreachableJson};
use crate::output::table::{self, Cell};
use crate::output::{Exit, Failure};

/// The format that scripts rely on; documented in `docs/reference/json.md`.
#[derive(Serialize)]
struct SweepJson<'a> {
    version: u32,
    applied: bool,
    planned: usize,
    gone: usize,
    accepted: usize,
    quarantined: usize,
    failed: usize,
    drifted: usize,
    spared: usize,
    items: &'a [ItemReport],
    unreachable: Vec<UnreachableJson>,
    /// How many changes and tries could not be recorded, because the disk is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_incomplete: Option<usize>,
    seconds: f64,
}

/// The outcome of a sweep, apply or rm, to be shown.
pub(crate) struct Shown<'a> {
    pub(crate) report: &'a Report,
    pub(crate) applied: bool,
    /// The number of items in the plan.
    pub(crate) planned: usize,
    pub(crate) unreachable: Vec<UnreachableJson>,
    pub(crate) took: Duration,
}

impl Shown<'_> {
    /// Prints the outcome: one line of JSON, or a table and totals.
    pub(crate) fn print(self, app: &App) {
        let report = self.report;
        if app.printer.json {
            app.printer.json(&SweepJson {
                version: 1,
                applied: self.applied,
                planned: self.planned,
                gone: report.count(Outcome::Gone),
                accepted: report.count(Outcome::Accepted),
                quarantined: report.count(Outcome::Quarantined),
                failed: report.count(Outcome::Failed),
                drifted: report.count(Outcome::Drifted),
                spared: report.count(Outcome::Spared),
                items: &report.items,
                unreachable: self.unreachable,
                audit_incomplete: Some(report.audit_incomplete).filter(|count| *count > 0),
                seconds: (self.took.as_secs_f64() * 1000.0).round() / 1000.0,
            });
            return;
        }
        if !report.items.is_empty() {
            app.printer.data(&table::render(&items_table(&report.items)));
        }
        // If a provider could not be listed, an empty list is not conclusive.
        if !report.items.is_empty() || self.unreachable.is_empty() {
            app.printer.say(&self.totals());
        }
    }

    /// Prints the outcome to stderr, when stdout belongs to the guarded command.
    pub(crate) fn say(self, app: &App) {
        if !self.report.items.is_empty() {
            app.printer.say(&table::render(&items_table(&self.report.items)));
        }
        app.printer.say(&format!("before the command: {}", self.totals()));
    }

    fn totals(&self) -> String {
        if !self.applied {
            let spared = self.report.count(Outcome::Spared);
            return match self.planned {
                0 => format!("nothing would be released, {spared} spared"),
                planned => format!(
                    "{planned} would be released, {spared} spared; add --apply to release them"
                ),
            };
        }
        let counted = [
            Outcome::Gone,
            Outcome::Accepted,
            Outcome::Quarantined,
            Outcome::Failed,
            Outcome::Drifted,
            Outcome::Spared,
        ];
        let parts: Vec<String> = counted
            .into_iter()
            .map(|outcome| (outcome, self.report.count(outcome)))
            .filter(|(outcome, count)| *count > 0 || *outcome == Outcome::Gone)
            .map(|(outcome, count)| format!("{count} {}", outcome.name()))
            .collect();
        format!("{} in {:.1}s", parts.join(", "), self.took.as_secs_f64())
    }
}

/// Makes the table of items.
pub(crate) fn items_table(items: &[ItemReport]) -> table::Table {
    let mut table = table::new(&["RESULT", "KIND", "ID", "NAME", "RULE", "REASON"]);
    for item in items {
        let evidence = || item.evidence.as_ref().map(ToString::to_string);
        let mut reason = item.reason.clone().or_else(evidence).unwrap_or_default();
        if item.tries > 1 {
            reason = format!("{reason} ({} tries)", item.tries).trim().to_owned();
        }
        table.add_row([
            coloured(item.result),
            Cell::new(item.kind),
            Cell::new(table::short_id(&item.id)),
            Cell::new(&item.name),
            Cell::new(&item.rule),
            Cell::new(reason),
        ]);
    }
    table
}

fn coloured(outcome: Outcome) -> Cell {
    let cell = Cell::new(outcome.name());
    match outcome {
        Outcome::Gone => cell.fg(Color::Green),
        Outcome::Failed | Outcome::Quarantined => cell.fg(Color::Red),
        Outcome::Accepted | Outcome::Drifted => cell.fg(Color::Yellow),
        Outcome::Planned | Outcome::Spared => cell,
    }
}

/// Returns the exit code for the outcome, or a failure.
pub(crate) fn verdict(report: &Report, interrupted: bool) -> Result<Exit, Failure> {
    let not_gone = report.items.iter().filter(|item| item.is_failure()).count();
    let kept = report.items.iter().filter(|item| item.is_failure() && item.kept_until.is_some());
    let kept: Vec<&ItemReport> = kept.collect();
    let failure = if interrupted {
        Failure::new(Code::Interrupted, Exit::Interrupted, "interrupted before the end")
            .hint("run the same command again to finish")
    } else if report.lost_a_provider() {
        Failure::new(
            Code::Unreachable,
            Exit::Provider,
            format!("a provider stopped answering; {not_gone} not verified gone"),
        )
        .hint("run the same command again once it answers; creel doctor shows whether it does")
    } else if not_gone > 0 && kept.len() == not_gone {
        kept_by_service(&kept)
    } else if !report.is_all_gone() {
        Failure::new(Code::NotGone, Exit::Unverified, format!("{not_gone} not verified gone"))
            .hint("each line says why; run the same command again, or: creel explain CR0040")
    } else if report.audit_incomplete > 0 {
        Failure::incomplete_audit(report.audit_incomplete)
    } else if report.count(Outcome::Drifted) > 0 {
        let drifted = report.count(Outcome::Drifted);
        Failure::new(Code::Drifted, Exit::Refused, format!("{drifted} changed and left alone"))
            .hint("make a new plan: creel sweep … --plan-out FILE")
    } else {
        return Ok(Exit::Done);
    };
    Err(failure.after_output())
}

/// Returns the failure for objects that were deleted but that the service keeps.
fn kept_by_service(kept: &[&ItemReport]) -> Failure {
    let last = kept.iter().filter_map(|item| item.kept_until).max();
    let until = last.map(show_date).unwrap_or_default();
    let message = format!(
        "{} deleted, and kept by the service all the same, until {until} at the latest",
        kept.len()
    );
    Failure::new(Code::KeptByService, Exit::Unverified, message)
        .hint("creel ls shows them until they are gone; this exit code is not repeated before then")
        .hint("creel explain CR0050 says what it means, and what may help")
}
