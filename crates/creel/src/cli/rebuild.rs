//! `creel ledger rebuild`: rebuilds a ledger that has vanished or is damaged.

use clap::Args;
use creel_core::rebuild;
use creel_core::rebuild::{FoundResource, RebuildError, RebuildSurvey};
use creel_ledger::event_log as records;
use creel_ledger::event_log::LostEvents;
use creel_model::failure::Code;
use creel_model::id::{LedgerId, ResourceId, RunId};
use creel_model::labels;
use creel_model::owner::Liveness;
use creel_model::provider::{Kind, ProviderError, ProviderName};
use creel_model::run::Phase;
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, table};

/// Restore a lost or damaged ledger; a dry run without --apply
///
/// Searches the providers for objects with the ledger's label and a name chosen
/// by creel, the state directory for sandboxes, and the event log for runs.
/// Nothing is released; run creel reconcile afterwards to release orphans. The
/// ledger keeps its id. A damaged file is kept under another name. If only run
/// events are lost, the gap is noted in the event log.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel ledger rebuild                     show what would be recorded
  creel ledger rebuild --apply             write the ledger
  creel ledger rebuild --new --apply       start an empty ledger with a new id")]
pub(crate) struct Rebuild {
    /// Write the ledger instead of only showing the records
    #[arg(long)]
    apply: bool,
    /// Start an empty ledger with a new id; resources of the old one become foreign
    #[arg(long, conflicts_with = "id")]
    new: bool,
    /// The id of the ledger, if neither its id file nor a sandbox contains it
    #[arg(long, value_name = "LEDGER")]
    id: Option<LedgerId>,
}

#[derive(Serialize)]
struct RebuildJson<'a> {
    version: u32,
    ledger: LedgerId,
    applied: bool,
    damage: &'a str,
    kept_as: Vec<String>,
    resources: Vec<FoundResourceJson<'a>>,
    runs: Vec<FoundRunJson>,
    unproven: Vec<UnprovenJson<'a>>,
    unreadable: &'a [String],
    unreachable: Vec<UnreachableProviderJson>,
}

#[derive(Serialize)]
struct FoundResourceJson<'a> {
    resource: ResourceId,
    run: Option<RunId>,
    provider: ProviderName,
    kind: Kind,
    id: &'a str,
    name: &'a str,
    owner: Liveness,
    evidence: &'a str,
}

#[derive(Serialize)]
struct FoundRunJson {
    run: RunId,
    phase: Phase,
    events: u64,
}

#[derive(Serialize)]
struct UnprovenJson<'a> {
    provider: ProviderName,
    kind: Kind,
    id: &'a str,
    name: &'a str,
    reason: &'a str,
}

#[derive(Serialize)]
struct UnreachableProviderJson {
    provider: ProviderName,
    error: String,
}

#[derive(Serialize)]
struct NewJson<'a> {
    version: u32,
    ledger: Option<LedgerId>,
    applied: bool,
    damage: &'a str,
    kept_as: Vec<String>,
}

#[derive(Serialize)]
struct LostEventsJson {
    version: u32,
    applied: bool,
    lost_events: Vec<LostJson>,
}

#[derive(Serialize)]
struct LostJson {
    run: RunId,
    first: u64,
    last: u64,
}

impl LostJson {
    fn of(lost: &LostEvents) -> Self {
        Self { run: lost.run, first: lost.first, last: lost.last }
    }
}

impl<'a> FoundResourceJson<'a> {
    fn of(found: &'a FoundResource) -> Self {
        Self {
            resource: found.resource,
            run: found.run,
            provider: found.seen.provider,
            kind: found.seen.kind,
            id: &found.seen.id,
            name: &found.seen.name,
            owner: found.owner.owner.liveness(),
            evidence: found.evidence,
        }
    }
}

impl Rebuild {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let home = &app.environment.home;
        let Some(damage) = rebuild::damage(home).await? else {
            return self.note_lost_events(app).await;
        };
        if self.new {
            return self.begin_anew(app, &damage).await;
        }
        let providers = app.providers(&[])?;
        let survey = rebuild::survey(home, &providers, self.id).await?;
        let aside = if self.apply { rebuild::write(home, &survey).await? } else { None };
        let kept_as: Vec<String> = aside.iter().map(|path| path.display().to_string()).collect();
        if app.printer.json {
            app.printer.json(&self.to_json(&survey, &damage, kept_as));
        } else {
            self.show(app, &survey, &damage, &kept_as);
        }
        match survey.unreachable.into_iter().next() {
            Some(error) => Err(Failure::from(error).after_output()),
            None => Ok(Exit::Done),
        }
    }

    /// Notes which events of runs without a live driver are lost; the ledger itself is sound.
    async fn note_lost_events(self, app: &App) -> Result<Exit, Failure> {
        let ledger = app.ledger().await?;
        let lost = records::lost_events(&ledger).await?;
        if lost.is_empty() {
            return Err(RebuildError::NotNeeded.into());
        }
        if self.apply {
            for LostEvents { run, .. } in &lost {
                if let Some(record) = ledger.run(*run).await? {
                    records::note_lost_events(&ledger, &record).await?;
                }
            }
        }
        let printer = &app.printer;
        if printer.json {
            let lost_events = lost.iter().map(LostJson::of).collect();
            printer.json(&LostEventsJson { version: 1, applied: self.apply, lost_events });
            return Ok(Exit::Done);
        }
        for LostEvents { run, first, last } in lost {
            printer.say(&format!("{run}: events {first} to {last} are lost; its outcome is not"));
        }
        printer.say(match self.apply {
            true => "noted in the event log; creel reconcile closes the runs of dead drivers",
            false => "--apply notes that in the event log",
        });
        Ok(Exit::Done)
    }

    async fn begin_anew(self, app: &App, damage: &str) -> Result<Exit, Failure> {
        let home = &app.environment.home;
        let old = creel_ledger::Ledger::recorded_id(home);
        let (ledger, aside) = if self.apply {
            let (ledger, aside) = rebuild::begin_anew(home).await?;
            (Some(ledger), aside)
        } else {
            (None, Vec::new())
        };
        let kept_as: Vec<String> = aside.iter().map(|path| path.display().to_string()).collect();
        let printer = &app.printer;
        if printer.json {
            printer.json(&NewJson { version: 1, ledger, applied: self.apply, damage, kept_as });
            return Ok(Exit::Done);
        }
        printer.say(damage);
        match ledger {
            Some(ledger) => printer.say(&format!("begun: an empty ledger, {ledger}")),
            None => printer.say("--apply begins an empty ledger with a new id"),
        }
        for path in kept_as {
            printer.say(&format!("kept: {path}"));
        }
        if let Some(old) = old {
            printer.say(&format!("creel sweep --ledger {old} finds what the old ledger named"));
            printer.say(&by_label(old));
        }
        Ok(Exit::Done)
    }

    fn to_json<'a>(
        &self,
        survey: &'a RebuildSurvey,
        damage: &'a str,
        kept_as: Vec<String>,
    ) -> RebuildJson<'a> {
        let shown = |error: &ProviderError| UnreachableProviderJson {
            provider: error.provider,
            error: error.message.clone(),
        };
        RebuildJson {
            version: 1,
            ledger: survey.ledger,
            applied: self.apply,
            damage,
            kept_as,
            resources: survey.resources.iter().map(FoundResourceJson::of).collect(),
            runs: survey
                .runs
                .iter()
                .map(|found| FoundRunJson {
                    run: found.run,
                    phase: found.state.phase,
                    events: found.state.sequence,
                })
                .collect(),
            unproven: survey
                .unproven
                .iter()
                .map(|one| UnprovenJson {
                    provider: one.seen.provider,
                    kind: one.seen.kind,
                    id: &one.seen.id,
                    name: &one.seen.name,
                    reason: one.reason,
                })
                .collect(),
            unreadable: &survey.unreadable,
            unreachable: survey.unreachable.iter().map(shown).collect(),
        }
    }

    fn show(&self, app: &App, survey: &RebuildSurvey, damage: &str, kept_as: &[String]) {
        let printer = &app.printer;
        printer.say(damage);
        if !survey.resources.is_empty() || !survey.unproven.is_empty() {
            printer.data(&table::render(&resources_table(survey)));
        }
        let unfinished = survey.runs.iter().filter(|found| !found.state.phase.is_final()).count();
        let verb = if self.apply { "on record again" } else { "to be put on record" };
        printer.say(&format!(
            "{} {verb}: {} resources, {} runs ({unfinished} not finished); {} left alone",
            survey.ledger,
            survey.resources.len(),
            survey.runs.len(),
            survey.unproven.len()
        ));
        for unreadable in &survey.unreadable {
            printer.warn(&format!("warning: not read: {unreadable}"));
        }
        for path in kept_as {
            printer.say(&format!("the damaged file is kept as {path}"));
        }
        if !survey.unproven.is_empty() {
            printer.say(&by_label(survey.ledger));
        }
        printer.say(if self.apply {
            "creel reconcile releases what dead owners left"
        } else {
            "creel ledger rebuild --apply writes this; nothing is released by it"
        });
    }
}

/// Returns how to release what carries a ledger's label under a name that a command chose.
fn by_label(ledger: LedgerId) -> String {
    let label = labels::LEDGER;
    format!(
        "what guarded commands named themselves is found by label: creel sweep --label \
         {label}={ledger}; images carry no label, docker images lists them"
    )
}

fn resources_table(survey: &RebuildSurvey) -> table::Table {
    let mut table = table::new(&["RECORD", "KIND", "ID", "NAME", "OWNER", "WHY"]);
    for found in &survey.resources {
        table.add_row([
            found.resource.to_string(),
            found.seen.kind.to_string(),
            table::short_id(&found.seen.id).to_owned(),
            found.seen.name.clone(),
            found.owner.owner.liveness().to_string(),
            found.evidence.to_owned(),
        ]);
    }
    for one in &survey.unproven {
        table.add_row([
            "none".to_owned(),
            one.seen.kind.to_string(),
            table::short_id(&one.seen.id).to_owned(),
            one.seen.name.clone(),
            String::new(),
            format!("left alone: {}", one.reason),
        ]);
    }
    table
}

impl From<RebuildError> for Failure {
    fn from(error: RebuildError) -> Self {
        let hint = match error {
            RebuildError::Ledger(error) => return error.into(),
            RebuildError::NotNeeded => "creel ledger check proves it",
            RebuildError::NoId => {
                "name it with --id led_…; creel ls --json shows the label dev.creel.ledger"
            }
        };
        Self::new(Code::Rebuild, Exit::Refused, error.to_string()).hint(hint)
    }
}
