//! Removes spools from sandboxes that may outlive their run.
//!
//! A spool contains the agent's text before it is masked, with every secret in it. The event log has
//! everything of it that may be kept. So a spool is removed before its sandbox is kept, and before
//! any release: an engine may stop a sandbox, in which nothing can be removed any more, and then
//! refuse to delete it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use creel_bridge::exec::ExecEnding;
use creel_ledger::{Ledger, Record, RecordFilter};
use creel_model::id::RunId;
use creel_model::labels;
use futures::StreamExt;
use tokio::time::timeout;
use tracing::debug;

use crate::sandbox::{Command, Finished, Sandbox, Sandboxes};

/// The prefix of the name of a bridge's directory, before the number of the attempt.
pub(crate) const BRIDGE_PREFIX: &str = "bridge-";
/// How long recovery tries. A sandbox that does not respond is released all the same.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of sandboxes in which spools are removed concurrently.
const CONCURRENCY: usize = 16;
/// Removes the directories of all bridges, and tries again if a live bridge wrote in the meantime.
const SCRIPT: &str = r#"rm -rf -- "$1"/"$2"* || rm -rf -- "$1"/"$2"*"#;

/// Removes the files that the bridges wrote in a sandbox. Returns whether they are gone in time.
pub(crate) async fn remove(sandbox: &dyn Sandbox, limit: Duration) -> bool {
    let script = ["sh", "-c", SCRIPT, "sh", sandbox.creel_directory(), BRIDGE_PREFIX];
    let command = Command::new(script, limit);
    let removed = timeout(limit, sandbox.exec(&command, &mut |_, _| {})).await;
    matches!(removed, Ok(Ok(Finished::Ended(ExecEnding::Code { code: 0 }))))
}

/// Removes the spools of sandboxes whose driver died and that are about to be released.
pub(crate) async fn remove_all(ledger: &Ledger, sandboxes: &Sandboxes, records: &[&Record]) {
    let with_bridge = records.iter().filter(|record| record.labels.contains_key(labels::BRIDGE));
    let runs: BTreeSet<RunId> = with_bridge.filter_map(|record| record.run).collect();
    let removals = runs.into_iter().map(|run| async move {
        let is_removed = timeout(LIMIT, remove_of_run(ledger, sandboxes, run)).await;
        if !matches!(is_removed, Ok(true)) {
            debug!(run_id = %run, "no spool could be removed; it goes with the sandbox");
        }
    });
    futures::stream::iter(removals).buffer_unordered(CONCURRENCY).collect().await
}

/// Removes the spools of a run. Returns whether its sandbox was reached and has none.
async fn remove_of_run(ledger: &Ledger, sandboxes: &Sandboxes, run: RunId) -> bool {
    let Ok(mut records) = ledger.records(&RecordFilter::of_run(run)).await else { return false };
    records.retain(|record| record.state.name().is_open());
    let Ok(sandbox) = sandboxes.open(&records, BTreeMap::new()).await else { return false };
    // A frozen sandbox would not run the command. One that cannot be woken is tried all the same.
    let _ = sandbox.wake().await;
    remove(sandbox.as_ref(), LIMIT).await
}
