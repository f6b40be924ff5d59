//! `creel ledger`: shows what is on record.

use clap::{Args, Subcommand};
use creel_ledger::{Ledger, Record, RecordFilter, StateName, StoredEvent, Try};
use creel_model::failure::Code;
use creel_model::id::ResourceId;
use creel_model::owner::Liveness;
use creel_sanitise::Masked;
use jiff::Timestamp;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, table};

use super::ledger_why;
use super::ls::OwnerJson;
use super::rebuild::Rebuild;

/// Show the recorded resources, their events and release attempts
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  creel ledger                  resources that may still exist
  creel ledger --all            all records, including released resources
  creel ledger show res_…       one resource: its events and release attempts
  creel ledger why NAME         why a resource was released
  creel ledger check            verify the integrity of the ledger
  creel ledger rebuild          restore a lost or damaged ledger"
)]
pub(crate) struct LedgerCommand {
    #[command(subcommand)]
    command: Option<LedgerSubcommand>,
    /// Include resources that are gone or lost
    #[arg(long)]
    all: bool,
    /// Only show resources in this state: intended, created, releasing, gone, quarantined, lost
    #[arg(long, value_name = "STATE", conflicts_with = "all")]
    state: Vec<StateName>,
}

#[derive(Debug, Subcommand)]
enum LedgerSubcommand {
    /// Show one resource with its events and release attempts
    #[command(after_help = "Example:\n  creel ledger show res_0198c0ffee00700080000000000000aa")]
    Show {
        /// The id of the resource
        #[arg(value_name = "ID")]
        id: ResourceId,
    },
    /// Show why a resource was released: the proof of ownership or the matching rule
    #[command(after_help = "\
Examples:
  creel ledger why pgdata
  creel ledger why 3f9c2a1b7d4e
  creel ledger why res_0198c0ffee00700080000000000000aa --json")]
    Why {
        /// The provider's id or a prefix of it, the name, or the resource id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Verify the ledger: the file's integrity, and its states against its events
    #[command(after_help = "Example:\n  creel ledger check --json | jq .sound")]
    Check,
    Rebuild(Rebuild),
}

#[derive(Serialize)]
struct RecordJson<'a> {
    resource: ResourceId,
    run: Option<String>,
    provider: &'a str,
    kind: &'a str,
    name: &'a str,
    id: Option<&'a str>,
    state: StateName,
    reason: Option<&'a str>,
    on_owner_death: &'a str,
    owner: OwnerJson,
    intended_at: Timestamp,
    changed_at: Timestamp,
}

impl<'a> RecordJson<'a> {
    fn of(record: &'a Record) -> Self {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            resource: record.id,
            run: record.run.map(|run| run.to_string()),
            provider: record.provider.name(),
            kind: record.kind.name(),
            name: &record.name,
            id: record.state.object(),
            state: record.state.name(),
            reason: record.state.reason().map(Masked::as_str),
            on_owner_death: record.on_owner_death.name(),
            owner: OwnerJson::from_owner(
                &record.owner.owner,
                record.owner.started_at(),
                Some(record.owner.command.to_string()),
                record.owner_liveness(),
            ),
            intended_at: at(record.intended_at_ms),
            changed_at: at(record.changed_at_ms),
        }
    }
}

#[derive(Serialize)]
struct RecordsJson<'a> {
    version: u32,
    ledger: String,
    records: Vec<RecordJson<'a>>,
}

#[derive(Serialize)]
struct ShowJson<'a> {
    version: u32,
    record: RecordJson<'a>,
    events: Vec<StoredEvent>,
    tries: Vec<Try>,
}

#[derive(Serialize)]
struct CheckJson {
    version: u32,
    sound: bool,
    problems: Vec<String>,
}

impl LedgerCommand {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        match self.command {
            None => self.list(app, &app.ledger().await?).await,
            Some(LedgerSubcommand::Show { id }) => show(app, &app.ledger().await?, id).await,
            Some(LedgerSubcommand::Why { id }) => {
                ledger_why::why(app, &app.ledger().await?, &id).await
            }
            Some(LedgerSubcommand::Check) => check(app, &app.ledger().await?).await,
            Some(LedgerSubcommand::Rebuild(command)) => command.run(app).await,
        }
    }

    async fn list(self, app: &App, ledger: &Ledger) -> Result<Exit, Failure> {
        let filter = match (self.all, self.state.is_empty()) {
            (true, _) => RecordFilter::default(),
            (false, true) => RecordFilter::open(),
            (false, false) => RecordFilter { states: self.state, ..RecordFilter::default() },
        };
        let records = ledger.records(&filter).await?;
        if app.printer.json {
            let shown = records.iter().map(RecordJson::of).collect();
            app.printer.json(&RecordsJson {
                version: 1,
                ledger: ledger.id().to_string(),
                records: shown,
            });
        } else if records.is_empty() {
            app.printer.say("no open records: nothing is left to release");
        } else {
            app.printer.data(&table::render(&records_table(&records)));
        }
        Ok(Exit::Done)
    }
}

fn records_table(records: &[Record]) -> table::Table {
    let now = Timestamp::now();
    let mut table =
        table::new(&["RESOURCE", "KIND", "STATE", "ID", "NAME", "AGE", "OWNER", "REASON"]);
    for record in records {
        let liveness = record.owner_liveness();
        let owner = match liveness {
            Liveness::Alive => format!("alive pid {}", record.owner.owner.process.pid),
            other => other.to_string(),
        };
        table.add_row([
            record.id.to_string(),
            record.kind.to_string(),
            record.state.name().to_string(),
            table::short_id(record.state.object().unwrap_or("")).to_owned(),
            // A name that creel chose adds nothing to the resource id.
            Some(&record.name)
                .filter(|name| **name != record.id.object_name())
                .cloned()
                .unwrap_or_default(),
            table::age(Timestamp::from_millisecond(record.intended_at_ms).ok(), now),
            owner,
            record.state.reason().map(Masked::to_string).unwrap_or_default(),
        ]);
    }
    table
}

async fn show(app: &App, ledger: &Ledger, id: ResourceId) -> Result<Exit, Failure> {
    let record = ledger.record(id).await?.ok_or(creel_ledger::LedgerError::Unknown { id })?;
    let events = ledger.history(id).await?;
    let tries = ledger.tries(Some(id), 1000).await?;
    if app.printer.json {
        let record = RecordJson::of(&record);
        app.printer.json(&ShowJson { version: 1, record, events, tries });
        return Ok(Exit::Done);
    }
    app.printer.data(&table::render(&records_table(std::slice::from_ref(&record))));
    let mut table = table::new(&["WHEN", "EVENT", "BY"]);
    for stored in &events {
        let text = serde_json::to_string(&stored.event).unwrap_or_default();
        table.add_row([clock_time(stored.at_ms), text, stored.actor.clone()]);
    }
    app.printer.data(&format!("\n{}", table::render(&table)));
    if !tries.is_empty() {
        let mut table =
            table::new(&["WHEN", "TRY", "OPERATION", "OUTCOME", "DETAIL", "ALLOWED BY"]);
        for one in tries.iter().rev() {
            table.add_row([
                clock_time(one.at_ms),
                one.attempt.to_string(),
                one.operation.to_string(),
                one.outcome.to_string(),
                one.detail.to_string(),
                one.evidence.as_ref().map(ToString::to_string).unwrap_or_default(),
            ]);
        }
        app.printer.data(&format!("\n{}", table::render(&table)));
    }
    Ok(Exit::Done)
}

pub(super) fn clock_time(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).map(|at| at.to_string()).unwrap_or_default()
}

async fn check(app: &App, ledger: &Ledger) -> Result<Exit, Failure> {
    let mut problems = ledger.check().await?;
    problems.extend(creel_ledger::event_log::check(ledger).await?);
    if app.printer.json {
        let sound = problems.is_empty();
        app.printer.json(&CheckJson { version: 1, sound, problems: problems.clone() });
    }
    if problems.is_empty() {
        app.printer.say("the ledger is sound: its file is whole, its events give its states");
        return Ok(Exit::Done);
    }
    let mut failure =
        Failure::new(Code::LedgerCorrupt, Exit::Internal, "the ledger is not sound").after_output();
    for problem in problems {
        failure = failure.because(&std::io::Error::other(problem));
    }
    Err(failure.hint("creel explain CR0013"))
}
