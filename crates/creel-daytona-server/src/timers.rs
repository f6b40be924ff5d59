//! Auto-stop, auto-archive, auto-delete and time to live.
//!
//! All sandboxes are checked periodically, as in the real service. Auto-delete applies only to
//! stopped sandboxes; one in error stays. Time to live applies in every state. Rows of sandboxes
//! that were deleted in error are purged when their retention is over.

use std::sync::Arc;

use uuid::Uuid;

use crate::fault::InjectedFaults;
use crate::moment::Moment;
use crate::sandbox::SandboxRecord;
use crate::shared::ServerState;
use crate::state::{Action, State};

/// Checks all sandboxes periodically, until the server ends.
pub(crate) async fn run(shared: Arc<ServerState>) {
    let period = shared.delays.timer_period;
    loop {
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = shared.cancel.cancelled() => return,
        }
        let now = Moment::now();
        let due: Vec<(Uuid, Action)> = {
            let registry = shared.registry();
            let all = registry.all().filter(|sandbox| sandbox.is_visible());
            all.filter_map(|sandbox| Some((sandbox.id, due(&shared, sandbox, now)?))).collect()
        };
        for id in purgeable(&shared, now) {
            shared.purge(id);
        }
        for (id, action) in due {
            // Another request may have been faster. The next round checks again.
            let _ = shared.apply_action(&id.to_string(), action, &InjectedFaults::default());
        }
    }
}

/// Returns the sandboxes that were deleted in error and whose retention is over.
fn purgeable(shared: &ServerState, now: Moment) -> Vec<Uuid> {
    let registry = shared.registry();
    let kept = registry.all().filter(|sandbox| sandbox.is_errored_deleted());
    let over = |sandbox: &&SandboxRecord| {
        let retention = sandbox.retention_minutes().unwrap_or_default();
        sandbox.updated_at.plus(shared.delays.minute * retention) <= now
    };
    kept.filter(over).map(|sandbox| sandbox.id).collect()
}

fn due(shared: &ServerState, sandbox: &SandboxRecord, now: Moment) -> Option<Action> {
    let minutes = |count: i64| shared.delays.minute * u32::try_from(count).unwrap_or(u32::MAX);
    let passed = |since: Moment, count: i64| since.plus(minutes(count)) <= now;
    let intervals = &sandbox.intervals;
    if sandbox.destroy_at.is_some_and(|at| at <= now) {
        return Some(Action::Expire);
    }
    match sandbox.state {
        State::Started if intervals.stop > 0 && passed(sandbox.active_at, intervals.stop) => {
            Some(Action::Stop)
        }
        State::Stopped if intervals.delete >= 0 && passed(sandbox.updated_at, intervals.delete) => {
            Some(Action::Destroy)
        }
        State::Stopped
            if intervals.archive > 0 && passed(sandbox.updated_at, intervals.archive) =>
        {
            Some(Action::Archive)
        }
        _ => None,
    }
}
