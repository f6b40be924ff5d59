//! Conversion of Daytona's sandboxes to [`Observed`].

use std::time::Duration;

use creel_model::provider::{Activity, Kind, Observed, Retention};
use jiff::Timestamp;

use super::model::DaytonaSandbox;
use super::state::SandboxState;

/// The suffix of the generation of a record that is hidden because its destroy failed.
const ERRORED_DELETED: &str = ":errored-deleted";
/// How long the service keeps the row of a sandbox that was deleted in `error`.
const KEPT_IN_ERROR: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long it keeps one whose build failed.
const KEPT_AFTER_BUILD: Duration = Duration::from_secs(24 * 3600);

/// Converts a sandbox to the provider-independent form.
pub(super) fn observed(sandbox: DaytonaSandbox) -> Observed {
    let updated_at = sandbox.updated_at.map(|at| at.to_string()).unwrap_or_default();
    let hidden = if sandbox.is_errored_deleted() { ERRORED_DELETED } else { "" };
    Observed {
        generation: format!("{}:{}:{updated_at}{hidden}", sandbox.id, sandbox.state),
        retained: retention_of(&sandbox),
        desired: desired_of(&sandbox),
        name: sandbox.name,
        activity: Activity::of(matches!(sandbox.state.name(), "started" | "paused")),
        state: sandbox.state.name().to_owned(),
        created_at: sandbox.created_at,
        last_active_at: sandbox.last_activity_at,
        labels: sandbox.labels,
        ..Observed::known_by_id(crate::NAME, Kind::Sandbox, sandbox.id)
    }
}

/// Returns until when the service keeps a sandbox whose delete it accepted.
///
/// The service sends no destroy for a failed sandbox, and drops the row when it has not changed for
/// some days.
fn retention_of(sandbox: &DaytonaSandbox) -> Option<Retention> {
    if !sandbox.is_errored_deleted() {
        return None;
    }
    let kept = match sandbox.state {
        SandboxState::BuildFailed => KEPT_AFTER_BUILD,
        _ => KEPT_IN_ERROR,
    };
    let since = sandbox.updated_at.unwrap_or_else(Timestamp::now);
    let until = since.checked_add(kept).unwrap_or(Timestamp::MAX);
    Some(Retention { until, reason: sandbox.error_reason.clone() })
}

/// Returns the pending state of a sandbox at rest.
///
/// An accepted stop or delete leaves the state unchanged until the runner processes it.
fn desired_of(sandbox: &DaytonaSandbox) -> Option<String> {
    let desired = sandbox.desired_state.as_ref()?;
    let pending = *desired != sandbox.state && !sandbox.state.has_failed();
    pending.then(|| desired.name().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(fields: serde_json::Value) -> Observed {
        observed(DaytonaSandbox::read(&fields).expect("it has an id"))
    }

    #[test]
    fn a_sandbox_deleted_in_error_is_kept_for_a_week_and_a_failed_build_for_a_day() {
        for (state, until) in
            [("error", "2026-11-23T09:00:00Z"), ("build_failed", "2026-11-17T09:00:00Z")]
        {
            let kept = seen(json!({"id": "a", "state": state, "desiredState": "destroyed",
                "errorReason": "runner lost", "updatedAt": "2026-11-16T09:00:00.000Z"}));
            let retained = kept.retained.expect("it is kept");
            assert_eq!(retained.until, until.parse().unwrap());
            assert_eq!(retained.reason.as_deref(), Some("runner lost"));
        }
        let failed = seen(json!({"id": "a", "state": "error", "desiredState": "started"}));
        assert_eq!((failed.retained, failed.desired), (None, None));
    }

    #[test]
    fn a_pending_request_shows_in_the_desired_state() {
        let pending = seen(json!({"id": "a", "state": "started", "desiredState": "destroyed"}));
        assert_eq!(pending.desired.as_deref(), Some("destroyed"));
        let at_rest = seen(json!({"id": "a", "state": "started", "desiredState": "started"}));
        assert_eq!(at_rest.desired, None);
    }
}
