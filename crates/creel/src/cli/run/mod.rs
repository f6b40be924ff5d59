//! `creel run`: a workflow, from nothing to a known outcome.

#[expect(dead_code, reason = "its flag comes with the command itself")]
pub(crate) mod check;
mod plan;
