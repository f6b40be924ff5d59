//! `creel ledger why`: shows what allowed a release, or why an object was kept.

use creel_ledger::{Event, Ledger, Record, RecordFilter, StateName, Try};
use creel_model::failure::Code;
use creel_model::id::ResourceId;
use creel_model::names;
use creel_sanitise::Masked;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, table};

use super::ledger::clock_time;

/// Maximum number of audit rows that are shown.
const MAX_ROWS: u32 = 1000;

#[derive(Serialize)]
struct WhyJson<'a> {
    version: u32,
    asked: &'a str,
    /// Every request to release it, newest first; `planned` was written before the first one.
    releases: Vec<Try>,
    /// The ledger's records of it, if it is one of ours.
    records: Vec<Reasons>,
}

/// The reasons that the events of one resource give for its end.
#[derive(Serialize)]
struct Reasons {
    resource: ResourceId,
    name: String,
    state: StateName,
    reasons: Vec<Reason>,
}

#[derive(Serialize)]
struct Reason {
    at_ms: i64,
    /// `release requested`, `replaced`, `quarantined` or `gone`.
    event: &'static str,
    why: Masked,
}

/// Shows what allowed the release of an object.
pub(super) async fn why(app: &App, ledger: &Ledger, name: &str) -> Result<Exit, Failure> {
    let releases = ledger.releases_of(name, MAX_ROWS).await?;
    let mut records = Vec::new();
    for record in ledger.records(&RecordFilter::default()).await? {
        let is_released = releases.iter().any(|one| one.resource == Some(record.id));
        if is_released || is_named(&record, name) {
            records.push(reasons_of(ledger, record).await?);
        }
    }
    if releases.is_empty() && records.is_empty() {
        let message = format!("no release of `{name}` is on record");
        return Err(Failure::new(Code::NoSuch, Exit::Usage, message)
            .hint("creel ledger --all lists what was ever on record"));
    }
    if app.printer.json {
        app.printer.json(&WhyJson { version: 1, asked: name, releases, records });
    } else {
        show(app, &releases, &records);
    }
    Ok(Exit::Done)
}

fn is_named(record: &Record, name: &str) -> bool {
    record.id.to_string() == name
        || record.name == name
        || record.state.object().is_some_and(|object| object == name)
}

async fn reasons_of(ledger: &Ledger, record: Record) -> Result<Reasons, Failure> {
    let mut reasons = Vec::new();
    for stored in ledger.history(record.id).await? {
        let (event, why) = match stored.event {
            Event::ReleaseRequested { why } => ("release requested", why),
            Event::Replaced { why } => ("replaced", why),
            Event::Quarantined { reason } => ("quarantined", reason),
            Event::NeverCreated { evidence } => ("never created", evidence),
            Event::VerifiedGone => ("gone", Masked::ours("its absence was verified")),
            _ => continue,
        };
        reasons.push(Reason { at_ms: stored.at_ms, event, why });
    }
    let state = record.state.name();
    Ok(Reasons { resource: record.id, name: record.name, state, reasons })
}

fn show(app: &App, releases: &[Try], records: &[Reasons]) {
    let mut rows = table::new(&["WHEN", "KIND", "ID", "NAME", "OUTCOME", "ALLOWED BY"]);
    for one in releases.iter().rev() {
        rows.add_row([
            clock_time(one.at_ms),
            one.kind.to_string(),
            table::short_id(&one.object).to_owned(),
            one.name.clone().unwrap_or_default().to_string(),
            one.outcome.to_string(),
            one.evidence.clone().unwrap_or_default().to_string(),
        ]);
    }
    if !releases.is_empty() {
        app.printer.data(&table::render(&rows));
    }
    for record in records {
        let name = names::visible(&record.name);
        let head = format!("\n{} {name} is {}", record.resource, record.state);
        if record.reasons.is_empty() {
            app.printer.data(&format!("{head}; nothing has asked for its release"));
            continue;
        }
        let mut rows = table::new(&["WHEN", "EVENT", "WHY"]);
        for reason in &record.reasons {
            rows.add_row([
                clock_time(reason.at_ms),
                reason.event.to_owned(),
                reason.why.to_string(),
            ]);
        }
        app.printer.data(&format!("{head}\n{}", table::render(&rows)));
    }
}
