//! The one pipeline of every release: select → plan → check → release → verify → report.
//!
//! ```text
//!   Listing ──▶ Survey ──▶ PlannedRelease ──▶ CheckedRelease ──▶ Report ──▶ Certificate
//!   all that    whose it    selected minus     within the caps    released    listed again
//!   exists      is          what is spared                        and         and compared
//!                                                                 verified
//! ```
//!
//! `creel sweep`, `apply`, `rm`, the sweep before a guarded command and [`cleanup`] go through all
//! stages. They differ in what they select, in their caps, and in what they show between two stages.
//! What is on record needs no selection: the supervisor, the guard, reconcile and the watchdog start
//! with the records that they own ([`Pipeline::release_record`], [`Pipeline::release_ours`]). Every
//! path ends in the same reaper, which is private to this crate.
//!
//! Nothing here prints, reads the environment or ends the process. A stage returns what its caller
//! shows; [`Progress`] reports each item while it runs. A crash in the middle leaves what the reaper
//! leaves: records in `Releasing`, and untracked objects that the next sweep sees.
//!
//! [`cleanup`]: crate::cleanup
//! [`Progress`]: crate::reap::Progress

mod certify;
mod listing;
mod planned;
mod run;
mod survey;

pub use certify::CertificateRequest;
pub use listing::Listing;
pub use planned::{CheckedRelease, PlannedRelease, SavedPlanError};
pub use run::Pipeline;
pub use survey::{Selection, Survey};
