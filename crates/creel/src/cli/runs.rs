//! `creel runs`: lists runs and their phases.

use std::time::Duration;

use clap::Args;
use creel_ledger::{Ledger, RunFilter, RunRecord};
use creel_model::clock::millis;
use creel_model::id::RunId;
use creel_model::owner::Liveness;
use creel_model::provider::ProviderName;
use creel_model::run::{CauseClass, Connection, Phase};
use jiff::Timestamp;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, table};

use super::ls::OwnerJson;

/// List runs with their phase and cause of failure
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel runs                                   all runs, newest last
  creel runs --phase running --phase paused    only running and paused runs
  creel runs --class model_timeout --newer-than 1d
  creel runs --json | jq '.runs[] | select(.phase == \"failed\") | .run'")]
pub(crate) struct Runs {
    /// Only runs in this phase: queued, running, awaiting_input, failed …
    #[arg(long, value_name = "PHASE")]
    phase: Vec<Phase>,
    /// Only runs with a cause of this class: model_timeout, hub_error, cancelled …
    #[arg(long, value_name = "CLASS")]
    class: Vec<CauseClass>,
    /// Only runs created within this time: 90s, 2h, 1d
    #[arg(long, value_name = "AGE", value_parser = creel_model::duration::parse)]
    newer_than: Option<Duration>,
    /// Only runs created at least this long ago: 90s, 2h, 1d
    #[arg(long, value_name = "AGE", value_parser = creel_model::duration::parse)]
    older_than: Option<Duration>,
}

/// The format that scripts rely on; documented in `docs/reference/json.md`.
#[derive(Serialize)]
struct RunsJson<'a> {
    version: u32,
    runs: Vec<RunJson<'a>>,
}

#[derive(Serialize)]
struct RunJson<'a> {
    run: RunId,
    name: &'a str,
    provider: ProviderName,
    phase: Phase,
    class: Option<CauseClass>,
    message: Option<&'a str>,
    attempt: u32,
    connection: Connection,
    on_owner_death: &'static str,
    owner: OwnerJson,
    created_at: Timestamp,
    changed_at: Timestamp,
}

impl<'a> RunJson<'a> {
    fn of(run: &'a RunRecord) -> Self {
        let cause = run.state.cause();
        let changed_at = Timestamp::from_millisecond(run.changed_at_ms);
        Self {
            run: run.id,
            name: run.name.as_str(),
            provider: run.provider,
            phase: run.state.phase,
            class: cause.map(|cause| cause.class),
            message: cause.map(|cause| cause.message.as_str()),
            attempt: run.state.attempt,
            connection: run.state.connection,
            on_owner_death: run.on_owner_death.name(),
            owner: OwnerJson::from_owner(
                &run.owner.owner,
                run.owner.started_at(),
                Some(run.owner.command.to_string()),
                run.owner_liveness(),
            ),
            created_at: run.created_at(),
            changed_at: changed_at.unwrap_or(Timestamp::UNIX_EPOCH),
        }
    }
}

impl Runs {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let runs = if Ledger::is_begun(&app.environment.home) {
            app.ledger().await?.runs(&self.filter(Timestamp::now())).await?
        } else {
            Vec::new()
        };
        if app.printer.json {
            let shown = runs.iter().map(RunJson::of).collect();
            app.printer.json(&RunsJson { version: 1, runs: shown });
        } else if runs.is_empty() {
            app.printer.say("no run fits");
        } else {
            app.printer.data(&table::render(&runs_table(&runs)));
        }
        // Reading never changes a run; it only reports how many must be closed.
        let orphans = runs.iter().filter(|run| is_orphan(run)).count();
        if orphans > 0 {
            let hint = "whose driver died; creel reconcile closes them, creel resume or cancel if they are detached";
            app.printer.say(&format!("{orphans} {hint}"));
        }
        Ok(Exit::Done)
    }

    fn filter(self, now: Timestamp) -> RunFilter {
        let ago = |age: Duration| now.as_millisecond().saturating_sub(millis(age));
        RunFilter {
            phases: self.phase,
            classes: self.class,
            newer_than_ms: self.newer_than.map(ago),
            older_than_ms: self.older_than.map(ago),
            ..RunFilter::default()
        }
    }
}

fn is_orphan(run: &RunRecord) -> bool {
    !run.state.phase.is_final() && run.owner_liveness() == Liveness::Dead
}

fn runs_table(runs: &[RunRecord]) -> table::Table {
    let now = Timestamp::now();
    let header = ["RUN", "NAME", "PHASE", "CAUSE", "ATTEMPT", "PROVIDER", "AGE", "DRIVER"];
    let mut table = table::new(&header);
    for run in runs {
        let cause = run.state.cause().map(|cause| cause.class.name());
        table.add_row([
            run.id.to_string(),
            run.name.to_string(),
            run.state.phase.to_string(),
            cause.unwrap_or_default().to_owned(),
            run.state.attempt.to_string(),
            run.provider.to_string(),
            table::age(Some(run.created_at()), now),
            driver(run),
        ]);
    }
    table
}

/// Describes the driver of a run; empty for a run that is over.
pub(crate) fn driver(run: &RunRecord) -> String {
    if run.state.phase.is_final() {
        return String::new();
    }
    match run.owner_liveness() {
        Liveness::Alive => format!("alive pid {}", run.owner.owner.process.pid),
        other => other.to_string(),
    }
}
