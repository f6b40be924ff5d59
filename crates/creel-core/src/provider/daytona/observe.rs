//! From Daytona's sandboxes to [`Observed`].

use crate::provider::{Kind, Observed, ProviderName};

use super::model::Sandbox;

/// Ends the generation of a record whose destroy failed, and which is hidden since.
const ERRORED_DELETED: &str = ":errored-deleted";

/// Returns a sandbox as the rest of creel sees it.
pub(super) fn observed(sandbox: Sandbox) -> Observed {
    let updated_at = sandbox.updated_at.map(|at| at.to_string()).unwrap_or_default();
    let hidden = if sandbox.is_errored_deleted() { ERRORED_DELETED } else { "" };
    Observed {
        generation: format!("{}:{}:{updated_at}{hidden}", sandbox.id, sandbox.state),
        name: sandbox.name,
        state: sandbox.state.name().to_owned(),
        created_at: sandbox.created_at,
        last_active_at: sandbox.last_activity_at,
        labels: sandbox.labels,
        ..Observed::known_by_id(ProviderName::Daytona, Kind::Sandbox, sandbox.id)
    }
}

/// Returns whether this is a hidden record whose destroy failed.
pub(super) fn is_errored_deleted(seen: &Observed) -> bool {
    seen.generation.ends_with(ERRORED_DELETED)
}
