//! creel-run: executes a workflow from its start to a known outcome.
//!
//! ```text
//!   workflow ─▶ engine ─▶ sandbox ─▶ bridge ─▶ agent
//!                 │
//!                 └─▶ event log (what happened) and ledger (what exists)
//! ```
//!
//! A run whose driver dies is closed by [`recovery`], which the watchdog and every reconcile call.
//!
//! | module | contents |
//! |---|---|
//! | [`workflow`] | the file that specifies a run; it is valid as a whole or rejected |
//! | [`sandbox`] | access to a sandbox of any provider |
//! | [`engine`] | provision, bootstrap, turns, release |
//! | [`commands`] | commands that other processes send to the driver of a run |
//! | [`recovery`] | closes the runs of dead drivers with a named cause |

pub mod commands;
pub mod engine;
mod messages;
pub mod recovery;
mod report;
pub mod sandbox;
mod spool;
pub mod workflow;

pub use report::{CauseReport, RunReport, StepReport};
