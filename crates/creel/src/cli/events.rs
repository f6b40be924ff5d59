//! `creel events`: prints what happened to a run, in sequence.

use std::io;

use clap::Args;
use creel_ledger::event_log::LogWatch;
use creel_ledger::{Ledger, LedgerError, RunRecord};
use creel_model::id::RunId;
use creel_model::owner::Liveness;
use creel_model::run::Logged;
use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::app::App;
use crate::output::{Exit, Failure, Printer};

use super::event_text::event_text;
use super::find_run::{find, ledger_of};

/// How many events are read at once.
const PAGE: u32 = 512;

/// Show the events of a run
///
/// With --json, prints one line of JSON per event.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel events last
  creel events last --follow        until the run ends
  creel events last --from 120      start at event 120
  creel events last --json | jq 'select(.event == \"text\") | .text'")]
pub(crate) struct Events {
    /// The run: an id, a prefix of an id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Keep printing new events until the run ends
    #[arg(short, long)]
    follow: bool,
    /// Start at this event number
    #[arg(long, value_name = "N", default_value_t = 1)]
    from: u64,
}

#[derive(Serialize)]
struct EventJson<'a> {
    version: u32,
    run: RunId,
    #[serde(flatten)]
    logged: &'a Logged,
}

impl Events {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let ledger = ledger_of(app, &self.run).await?;
        let run = find(&ledger, &self.run).await?;
        let log = ledger.event_log().await?;
        // Started before the first read, so that no event is missed in between.
        let mut watch = self.follow.then(|| LogWatch::over(ledger.home()));
        let (mut next, mut warned) = (self.from.max(1), false);
        let newest = log.newest(run).await?;
        if newest == 0 {
            app.printer
                .warn("there are no events of this run: its event log is missing or was replaced");
        }
        loop {
            // Read before the log: the log then contains what ended the run.
            let record = record_of(&ledger, run).await?;
            let events = log.read(run, next, PAGE).await?;
            for logged in &events {
                print(&app.printer, run, logged);
                next = logged.sequence + 1;
            }
            if events.len() == PAGE as usize {
                continue;
            }
            let Some(watch) = &mut watch else { break };
            if record.state.phase.is_final() || is_stdout_closed() {
                break;
            }
            warned = warned || warn_of_death(&app.printer, &record);
            watch.changed().await;
        }
        Ok(Exit::Done)
    }
}

async fn record_of(ledger: &Ledger, run: RunId) -> Result<RunRecord, Failure> {
    Ok(ledger.run(run).await?.ok_or(LedgerError::UnknownRun { run })?)
}

fn print(printer: &Printer, run: RunId, logged: &Logged) {
    if printer.json {
        return printer.json(&EventJson { version: 1, run, logged });
    }
    let at = Timestamp::from_millisecond(logged.at_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let event_text = event_text(&logged.event);
    printer.data(&format!("{:>5}  {}  {event_text}", logged.sequence, at.strftime("%H:%M:%S%.3f")));
}

/// Warns that the driver of the run is dead; returns whether it is.
fn warn_of_death(printer: &Printer, record: &RunRecord) -> bool {
    let dead = record.owner_liveness() == Liveness::Dead;
    if dead {
        printer.say("the driver of the run died; close it with: creel reconcile");
    }
    dead
}

/// Returns whether the other end of standard output is closed.
fn is_stdout_closed() -> bool {
    let stdout = io::stdout();
    let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ends, Some(&at_once)).is_ok() && ends[0].revents().contains(PollFlags::ERR)
}
