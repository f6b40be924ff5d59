//! `creel retry`: another attempt of a run, where one can help.

use clap::{Args, ValueEnum};
use creel_core::failure::Code;
use creel_core::ledger::{OnOwnerDeath, RunRecord};
use creel_core::run::records::Journal;
use creel_core::run::{AttemptFrom, Phase};

use crate::app::{App, this_process};
use crate::cli::named_run::find_record;
use crate::output::{Exit, Failure};

use super::drive::{Errand, Stage, Start, perform};

/// Where another attempt begins.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum From {
    /// With a new sandbox
    Scratch,
    /// With the checklist, in the sandbox that was kept
    Bootstrap,
}

/// Try a run again, where that can help
///
/// A new attempt of the same run, with the same workflow. What cannot come out
/// otherwise is refused with the reason: a run that succeeded, one that is still
/// going on, and one whose cause has to be mended first (--force tries anyway).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel retry last
  creel retry last --from bootstrap                in the sandbox that `on_failure.keep` kept
  creel retry run_0198c5 --force                   the credential has been renewed")]
pub(crate) struct Retry {
    /// The run: its id, a beginning of it, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Where to begin
    #[arg(long, value_enum, default_value = "scratch")]
    from: From,
    /// Try even where the cause says that it cannot help
    #[arg(long)]
    force: bool,
}

impl Retry {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let stage = Stage::set(app, OnOwnerDeath::Release).await?;
        let record = find_record(&stage.ledger, &self.run).await?;
        self.refuse_if_useless(&record)?;
        let errand = Errand::of_run(&stage.ledger, record.id).await?;
        let me = this_process()?;
        let journal = Journal::take_up(&stage.ledger, record.id, &record.owner.owner, &me).await?;
        let journal = journal.ok_or_else(|| refused("another process has just taken the run"))?;
        // What was kept is used again, or given back before something new is made.
        stage.inherit(&record, &me).await?;
        let from = match self.from {
            From::Scratch => AttemptFrom::Scratch,
            From::Bootstrap => AttemptFrom::Bootstrap,
        };
        let start = Start::Attempt(from);
        perform(app, &stage, errand.workflow, journal, (start, OnOwnerDeath::Release)).await
    }

    fn refuse_if_useless(&self, record: &RunRecord) -> Result<(), Failure> {
        let state = &record.state;
        match state.phase {
            Phase::Succeeded => Err(refused("the run succeeded; there is nothing to try again")),
            phase if !phase.is_final() => {
                let hint = "creel cancel ends it; creel resume takes it up if its driver died";
                Err(refused(&format!("the run is still {phase}")).hint(hint))
            }
            _ => match state.cause() {
                Some(cause) if !cause.retryable && !self.force => {
                    let message =
                        format!("{} does not go away by itself: {}", cause.class, cause.message);
                    Err(refused(&message).hint(cause.action()).hint("--force tries all the same"))
                }
                _ => self.refuse_without_sandbox(record),
            },
        }
    }

    fn refuse_without_sandbox(&self, record: &RunRecord) -> Result<(), Failure> {
        let wants_kept = matches!(self.from, From::Bootstrap);
        if wants_kept && record.state.kept_until_ms.is_none() {
            let message = "the run's sandbox was given back; only a new one is left";
            return Err(refused(message).hint("leave --from away"));
        }
        Ok(())
    }
}

pub(super) fn refused(message: &str) -> Failure {
    Failure::new(Code::RunTaken, Exit::Refused, message)
}
