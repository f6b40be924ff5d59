//! Runs: from nothing to a known outcome.
//!
//! ```text
//!   queued ─▶ provisioning ─▶ bootstrapping ─▶ ready ─▶ running ⇄ retrying, awaiting input, paused
//!      │           │                │            │          │
//!      └───────────┴────────────────┴────────────┴──────────┴──▶ releasing ─▶ succeeded, failed, cancelled
//! ```
//!
//! A run is what its events make of it: [`RunState::apply`] is the one function,
//! live and in replay. Whether the sandbox can be reached is an axis of its own,
//! and a cause that was named is never replaced by what followed from it.
//!
//! A crash leaves a run in a phase that is not final, with an owner that is dead;
//! the watchdog or the next reconcile gives back what it took and names that as
//! the cause, unless one is named already.

mod capability;
mod cause;
mod checklist;
mod condition;
pub mod engine;
mod event;
pub(crate) mod messages;
pub mod orders;
mod phase;
pub mod records;
mod report;
mod state;

pub use creel_bridge::event::Stream;

pub use capability::{Ability, Capabilities, Capability};
pub use cause::{Cause, CauseClass, Causes};
pub use checklist::{Step, StepStatus};
pub use condition::{Condition, ConditionType, Status};
pub use event::{AttemptFrom, Logged, RunEvent, TurnOutcome};
pub use orders::Order;
pub use phase::{Connection, Phase};
pub use report::{CauseReport, RunReport, StepReport};
#[cfg(test)]
pub(crate) use state::tests as examples;
pub use state::{Certified, IllegalEvent, OpenRequest, OutputCount, RunState};
