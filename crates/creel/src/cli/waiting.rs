//! Watchdogs that wait for creates whose response never came.

use std::collections::BTreeMap;
use std::fmt;

use creel_ledger::{Ledger, LedgerError, Record, RecordFilter};
use creel_model::owner::Liveness;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::app::App;

/// The command of a watchdog on the ledger.
const WATCHDOG: &str = "creel watchdog";

/// A watchdog that stays because creates of a dead supervisor may still complete.
#[derive(Debug, Serialize)]
pub(crate) struct WaitingWatchdog {
    /// The process id of the watchdog.
    pid: i32,
    /// The kind and name of each create.
    creates: Vec<String>,
    /// The latest time at which it stops waiting.
    until: Timestamp,
}

impl fmt::Display for WaitingWatchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, creates, until } = self;
        let noun = if creates.len() == 1 { "create" } else { "creates" };
        write!(
            f,
            "watchdog pid {pid} waits for {} unanswered {noun} ({}), until {until:.0} at the latest",
            creates.len(),
            creates.join(", ")
        )
    }
}

/// Returns the watchdogs of this ledger that wait for creates.
pub(crate) async fn for_late_creates(
    app: &App,
    ledger: &Ledger,
) -> Result<Vec<WaitingWatchdog>, LedgerError> {
    let is_waited_for = |record: &Record| {
        record.state.object().is_none()
            && record.owner.command == WATCHDOG
            && record.owner_liveness() == Liveness::Alive
    };
    let window =
        SignedDuration::try_from(app.config.ledger.intent_window).unwrap_or(SignedDuration::MAX);
    let mut waiting: BTreeMap<i32, WaitingWatchdog> = BTreeMap::new();
    let open = ledger.records(&RecordFilter::open()).await?;
    for record in open.iter().filter(|record| is_waited_for(record)) {
        let pid = record.owner.owner.process.pid;
        let intended_at = Timestamp::from_millisecond(record.intended_at_ms).unwrap_or_default();
        let until = intended_at.checked_add(window).unwrap_or(Timestamp::MAX);
        let one = waiting.entry(pid).or_insert_with(|| WaitingWatchdog {
            pid,
            creates: Vec::new(),
            until,
        });
        one.creates.push(format!("{} {}", record.kind, record.name));
        one.until = one.until.max(until);
    }
    Ok(waiting.into_values().collect())
}
