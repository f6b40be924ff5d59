//! Finding the run that somebody means.

use creel_core::failure::Code;
use creel_core::ledger::{Ledger, RunFilter, RunRecord};

use crate::output::{Exit, Failure};

/// Finds a run by its id, a beginning of it, or as the last one.
pub(crate) async fn find(ledger: &Ledger, words: &str) -> Result<RunRecord, Failure> {
    let mut runs = ledger.runs(&RunFilter::default()).await?;
    runs.sort_by_key(|run| run.id);
    let mut fitting: Vec<RunRecord> = match words {
        "last" => runs.into_iter().next_back().into_iter().collect(),
        words => runs.into_iter().filter(|run| run.id.to_string().starts_with(words)).collect(),
    };
    match fitting.len() {
        1 => Ok(fitting.remove(0)),
        0 => Err(Failure::new(Code::NoRun, Exit::Usage, format!("there is no run {words}"))),
        _ => Err(Failure::new(Code::AmbiguousRun, Exit::Usage, format!("several runs begin with {words}"))),
    }
}
