//! Control groups: where they can be created, their limits, and those of one tree.
//!
//! ```text
//!   plan ───▶ group ───▶ hierarchies
//!   to make   as made    where groups can be
//! ```

mod group;
mod hierarchies;
mod plan;

pub(crate) use group::{GroupRecord, leave_freezer, pids_in, remove_unrecorded};
pub use hierarchies::CgroupVersion;
pub(crate) use hierarchies::Hierarchies;
pub(crate) use plan::PlannedGroup;
