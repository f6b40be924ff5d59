//! `creel retry`: starts another attempt of a run, if that can help.

use clap::{Args, ValueEnum};
use creel_ledger::event_log::Journal;
use creel_ledger::{OnOwnerDeath, RunRecord};
use creel_model::failure::Code;
use creel_model::run::{AttemptFrom, Phase};

use crate::app::{App, this_process};
use crate::cli::find_run::find_record;
use crate::output::{Exit, Failure};

use super::drive::{DriveContext, RunRequest, Start, perform};

/// Where another attempt begins.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum From {
    /// In a new sandbox
    Scratch,
    /// At the checklist, in the kept sandbox
    Bootstrap,
}

/// Retry a failed or cancelled run
///
/// Starts a new attempt of the same run with the same workflow. Refuses a run
/// that succeeded or is still in progress, and a run whose cause must be fixed
/// first (--force retries it anyway).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel retry last
  creel retry last --from bootstrap                in the kept sandbox (`on_failure.keep`)
  creel retry run_0198c5 --force                   after the cause was fixed")]
pub(crate) struct Retry {
    /// The run: an id, a prefix of an id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Where to start
    #[arg(long, value_enum, default_value = "scratch")]
    from: From,
    /// Retry even if the cause is not retryable
    #[arg(long)]
    force: bool,
}

impl Retry {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let context = DriveContext::open(app, OnOwnerDeath::Release).await?;
        let record = find_record(&context.ledger, &self.run).await?;
        self.refuse_if_useless(&record)?;
        let request = RunRequest::of_run(&context.ledger, record.id).await?;
        let me = this_process()?;
        let journal = Journal::claim(&context.ledger, record.id, &record.owner.owner, &me).await?;
        let journal = journal.ok_or_else(|| refused("another process has just taken the run"))?;
        // What was kept is reused, or released before anything new is created.
        context.inherit(&record, &me).await?;
        let from = match self.from {
            From::Scratch => AttemptFrom::Scratch,
            From::Bootstrap => AttemptFrom::Bootstrap,
        };
        let start = Start::Attempt(from);
        perform(app, &context, request.workflow, journal, (start, OnOwnerDeath::Release)).await
    }

    fn refuse_if_useless(&self, record: &RunRecord) -> Result<(), Failure> {
        let state = &record.state;
        match state.phase {
            Phase::Succeeded => Err(refused("the run succeeded; there is nothing to try again")),
            phase if !phase.is_final() => {
                let hint = "creel cancel ends it; creel resume continues it if its driver died";
                Err(refused(&format!("the run is still {phase}")).hint(hint))
            }
            _ => match state.cause() {
                Some(cause) if !cause.retryable && !self.force => {
                    let message =
                        format!("{} does not go away by itself: {}", cause.class, cause.message);
                    Err(refused(&message).hint(cause.action()).hint("--force retries anyway"))
                }
                _ => self.refuse_without_sandbox(record),
            },
        }
    }

    fn refuse_without_sandbox(&self, record: &RunRecord) -> Result<(), Failure> {
        let wants_kept = matches!(self.from, From::Bootstrap);
        if wants_kept && record.state.kept_until_ms.is_none() {
            let message = "the run's sandbox was released; another attempt needs a new one";
            return Err(refused(message).hint("omit --from"));
        }
        Ok(())
    }
}

pub(super) fn refused(message: &str) -> Failure {
    Failure::new(Code::RunDrivenElsewhere, Exit::Refused, message)
}
