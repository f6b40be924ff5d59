//! Finds the run that the user names: by its id, a prefix of it, or `last`.

use creel_ledger::event_log::current;
use creel_ledger::{Ledger, RunFilter, RunRecord};
use creel_model::failure::Code;
use creel_model::id::RunId;

use crate::app::App;
use crate::output::{Exit, Failure};

/// How many runs the error for an ambiguous name lists.
const MOST_LISTED: usize = 5;

/// Opens the ledger for a command that needs an existing run; never creates a ledger.
pub(crate) async fn ledger_of(app: &App, name: &str) -> Result<Ledger, Failure> {
    if !Ledger::is_begun(&app.environment.home) {
        return Err(no_run(name));
    }
    app.ledger().await
}

/// Finds the named run.
pub(crate) async fn find(ledger: &Ledger, name: &str) -> Result<RunId, Failure> {
    if name == "last" {
        let all = ledger.runs(&RunFilter::default()).await?;
        return all.last().map(|run| run.id).ok_or_else(|| no_run(name));
    }
    let filter = RunFilter { id_prefix: Some(whole(name)), ..RunFilter::default() };
    match ledger.runs(&filter).await?.as_slice() {
        [] => Err(no_run(name)),
        [one] => Ok(one.id),
        several => Err(ambiguous(name, several)),
    }
}

/// Finds the named run with everything known about it, including events newer than its row.
pub(crate) async fn find_record(ledger: &Ledger, name: &str) -> Result<RunRecord, Failure> {
    let run = find(ledger, name).await?;
    current(ledger, run).await?.ok_or_else(|| no_run(name))
}

/// Returns a name with the prefix of run ids, which the user may omit.
fn whole(name: &str) -> String {
    let name = name.to_lowercase();
    if name.starts_with("run_") { name } else { format!("run_{name}") }
}

fn no_run(name: &str) -> Failure {
    let message = match name {
        "last" => "there is no run on this ledger yet".to_owned(),
        name => format!("no run on this ledger fits `{name}`"),
    };
    Failure::new(Code::NoRun, Exit::Usage, message).hint("creel runs lists every run")
}

fn ambiguous(name: &str, several: &[RunRecord]) -> Failure {
    let message = format!("{} runs fit `{name}`", several.len());
    let failure = Failure::new(Code::AmbiguousRun, Exit::Usage, message);
    let listed = several.iter().rev().take(MOST_LISTED);
    listed.fold(failure, |failure, run| failure.hint(format!("{} is {}", run.id, run.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_an_id_may_be_left_out() {
        assert_eq!(whole("0198C0"), "run_0198c0");
        assert_eq!(whole("run_0198c0"), "run_0198c0");
    }
}
