//! The model of a run: from a request to a known outcome.
//!
//! ```text
//!   queued ─▶ provisioning ─▶ bootstrapping ─▶ ready ─▶ running ⇄ retrying, awaiting input, paused
//!      │           │                │            │          │
//!      └───────────┴────────────────┴────────────┴──────────┴──▶ releasing ─▶ succeeded, failed, cancelled
//! ```
//!
//! The events of a run determine its state. [`RunState::apply`] is the only
//! function that applies them, live and in replay. Whether the sandbox can be
//! reached is independent of the phase. A recorded cause is never replaced by its consequences.
//!
//! A crash leaves a run in a phase that is not final, with a dead owner. The
//! watchdog or the next reconcile releases its resources and records the crash as
//! the cause, unless there is one already.

mod capability;
mod cause;
mod checklist;
mod command;
mod condition;
mod event;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
mod phase;
mod state;

pub use creel_bridge::event::Stream;

pub use capability::{Ability, Capabilities, Capability};
pub use cause::{Cause, CauseClass, Causes};
pub use checklist::{Step, StepStatus};
pub use command::RunCommand;
pub use condition::{Condition, ConditionStatus, ConditionType};
pub use event::{AttemptFrom, Logged, RunEvent, TurnOutcome};
pub use phase::{Connection, Phase};
pub use state::{Certified, IllegalEvent, OpenRequest, OutputCount, RunState};
