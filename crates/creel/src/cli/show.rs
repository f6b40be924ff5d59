//! `creel show`: prints one run in full.

use clap::Args;
use creel_ledger::RunRecord;
use creel_ledger::event_log as records;
use creel_model::names;
use creel_model::owner::Liveness;
use creel_model::run::{Cause, Certified, Connection, RunState, Step};
use creel_run::RunReport;
use jiff::Timestamp;

use crate::app::App;
use crate::output::{Exit, Failure, table};

use super::find_run::{find, ledger_of};
use super::kept;
use super::runs::driver;

/// Show one run: its checklist, conditions, cause of failure and leftovers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel show last                   the newest run
  creel show run_0198c0ff           a prefix of the id is enough
  creel show last --json | jq .cause.action")]
pub(crate) struct Show {
    /// The run: an id, a prefix of an id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
}

impl Show {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let ledger = ledger_of(app, &self.run).await?;
        let id = find(&ledger, &self.run).await?;
        let found = records::current(&ledger, id).await?;
        let run = found.ok_or(creel_ledger::LedgerError::UnknownRun { run: id })?;
        if app.printer.json {
            app.printer.json(&RunReport::of(&run));
        } else {
            let hints = match run.state.kept_until_ms {
                Some(_) => kept::access_hints(app, &ledger, id).await?,
                None => Vec::new(),
            };
            for part in parts(&run, &hints) {
                app.printer.data(&part);
            }
        }
        Ok(Exit::Done)
    }
}

/// Describes a run for people, in parts with a line between them.
fn parts(run: &RunRecord, hints: &[String]) -> Vec<String> {
    let state = &run.state;
    let mut parts = vec![head(run), hints.join("\n"), causes(state)];
    parts.push(checklist(&state.checklist));
    parts.push(conditions(state));
    parts.push(capabilities(state));
    parts.push(state.certificate.as_ref().map(certificate).unwrap_or_default());
    parts.retain(|part| !part.is_empty());
    let last = parts.len() - 1;
    for part in &mut parts[..last] {
        part.push('\n');
    }
    parts
}

fn head(run: &RunRecord) -> String {
    let state = &run.state;
    let mut facts = vec![
        ("run", run.id.to_string()),
        ("name", run.name.to_string()),
        ("phase", state.phase.to_string()),
        ("attempt", state.attempt.to_string()),
        ("turns", state.turns.to_string()),
        ("sandbox", sandbox(run)),
        ("asked for", run.created_at().to_string()),
    ];
    if !state.phase.is_final() {
        facts.push(("driver", driver(run)));
    }
    if !state.phase.is_final() && run.owner_liveness() == Liveness::Dead {
        let hints = "creel resume continues a detached run; creel reconcile ends any other";
        facts.push(("to go on", hints.to_owned()));
    }
    if let Some(open) = &state.request {
        facts.push(("waits for", format!("an answer to {}: creel message", open.request)));
    }
    if let Some(until) = state.kept_until_ms {
        let until = Timestamp::from_millisecond(until).unwrap_or(Timestamp::UNIX_EPOCH);
        facts.push(("kept until", until.to_string()));
    }
    let lines: Vec<String> = facts.iter().map(|(name, fact)| format!("{name:<11}{fact}")).collect();
    lines.join("\n")
}

fn sandbox(run: &RunRecord) -> String {
    match run.state.connection {
        Connection::None => run.provider.to_string(),
        connection => format!("{}, {}", run.provider, connection.name()),
    }
}

fn causes(state: &RunState) -> String {
    let Some(cause) = state.cause() else { return String::new() };
    let mut lines = vec![
        format!("{:<11}{}: {}", "cause", cause.class, cause_text(cause)),
        format!("{:<11}{}", "to do", cause.action()),
    ];
    let others = state.causes.chain().iter().filter(|other| *other != cause);
    lines.extend(others.map(|other| {
        let attempt = other.attempt;
        format!("{:<11}{} (attempt {attempt}): {}", "beside it", other.class, cause_text(other))
    }));
    lines.join("\n")
}

fn cause_text(cause: &Cause) -> String {
    match &cause.step {
        Some(step) => format!("{} (step {step})", cause.message),
        None => cause.message.to_string(),
    }
}

fn checklist(steps: &[Step]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let mut table = table::new(&["STEP", "STATUS", "SECONDS", "TRIES", "EXPECTED", "FOUND"]);
    for step in steps {
        let status = serde_json::to_value(step.status).unwrap_or_default();
        table.add_row([
            step.step.to_string(),
            status.as_str().unwrap_or_default().to_owned(),
            step.seconds.map(|seconds| format!("{seconds:.1}")).unwrap_or_default(),
            step.tries.to_string(),
            step.expected.to_string(),
            found(step),
        ]);
    }
    let mut text = table::render(&table);
    // The output of a step matters only if the step did not pass.
    for step in steps.iter().filter(|step| !step.is_done()) {
        if let Some(tail) = step.tail.as_ref().filter(|tail| !tail.is_empty()) {
            text.push_str(&format!("\n{} wrote at last: {tail}", step.step));
        }
    }
    text
}

fn found(step: &Step) -> String {
    let text = step.found.as_ref().map(ToString::to_string).unwrap_or_default();
    match step.exit_code {
        Some(code) if code != 0 => format!("{text} (exit code {code})").trim().to_owned(),
        _ => text,
    }
}

fn conditions(state: &RunState) -> String {
    if state.conditions.is_empty() {
        return String::new();
    }
    let mut table = table::new(&["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for condition in state.conditions.values() {
        table.add_row([
            format!("{:?}", condition.about),
            format!("{:?}", condition.status),
            condition.reason.to_string(),
            condition.message.to_string(),
        ]);
    }
    table::render(&table)
}

fn capabilities(state: &RunState) -> String {
    if state.capabilities.is_empty() {
        return String::new();
    }
    let mut table = table::new(&["CAPABILITY", "AVAILABLE", "EVIDENCE"]);
    for (capability, ability) in &state.capabilities {
        let name = serde_json::to_value(capability).unwrap_or_default();
        let available = if ability.available { "yes" } else { "no" };
        table.add_row([
            name.as_str().unwrap_or_default().to_owned(),
            available.to_owned(),
            ability.evidence.to_string(),
        ]);
    }
    table::render(&table)
}

fn certificate(certified: &Certified) -> String {
    let mut lines = vec![match (certified.verified, certified.left.is_empty()) {
        (true, true) => "certificate verified: nothing is left".to_owned(),
        (_, true) => "certificate NOT verified".to_owned(),
        (_, false) => "certificate NOT verified; left:".to_owned(),
    }];
    let left = certified.left.iter();
    lines.extend(left.map(|left| {
        let (id, name) =
            (names::visible(table::short_id(&left.id)), names::visible(left.name.as_str()));
        format!("  {} {} {id} ({name})", left.provider, left.kind)
    }));
    lines.join("\n")
}
