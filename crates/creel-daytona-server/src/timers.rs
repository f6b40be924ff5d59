//! Auto-stop, auto-archive, auto-delete and time to live.
//!
//! Looked at on a period, as the real service does. Auto-delete looks only at
//! stopped sandboxes: one in error stays. Time to live looks at no state. Rows of
//! sandboxes that were deleted in error are purged when their retention is over.

use std::sync::Arc;

use uuid::Uuid;

use crate::fault::Mischief;
use crate::moment::Moment;
use crate::sandbox::Sandbox;
use crate::shared::Shared;
use crate::state::{Order, State};

/// Looks at all sandboxes again and again, until the server ends.
pub(crate) async fn run(shared: Arc<Shared>) {
    let period = shared.delays.timer_period;
    loop {
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = shared.cancel.cancelled() => return,
        }
        let now = Moment::now();
        let due: Vec<(Uuid, Order)> = {
            let registry = shared.registry();
            let all = registry.all().filter(|sandbox| sandbox.is_visible());
            all.filter_map(|sandbox| Some((sandbox.id, due(&shared, sandbox, now)?))).collect()
        };
        for id in purgeable(&shared, now) {
            shared.purge(id);
        }
        for (id, order) in due {
            // Somebody may have been faster; the next round looks again.
            let _ = shared.order(&id.to_string(), order, &Mischief::default());
        }
    }
}

/// Returns the sandboxes that were deleted in error and whose rows were kept long enough.
fn purgeable(shared: &Shared, now: Moment) -> Vec<Uuid> {
    let registry = shared.registry();
    let kept = registry.all().filter(|sandbox| sandbox.is_errored_deleted());
    let over = |sandbox: &&Sandbox| {
        let retention = sandbox.retention_minutes().unwrap_or_default();
        sandbox.updated_at.plus(shared.delays.minute * retention) <= now
    };
    kept.filter(over).map(|sandbox| sandbox.id).collect()
}

fn due(shared: &Shared, sandbox: &Sandbox, now: Moment) -> Option<Order> {
    let minutes = |count: i64| shared.delays.minute * u32::try_from(count).unwrap_or(u32::MAX);
    let passed = |since: Moment, count: i64| since.plus(minutes(count)) <= now;
    let intervals = &sandbox.intervals;
    if sandbox.destroy_at.is_some_and(|at| at <= now) {
        return Some(Order::Expire);
    }
    match sandbox.state {
        State::Started if intervals.stop > 0 && passed(sandbox.active_at, intervals.stop) => {
            Some(Order::Stop)
        }
        State::Stopped if intervals.delete >= 0 && passed(sandbox.updated_at, intervals.delete) => {
            Some(Order::Destroy)
        }
        State::Stopped
            if intervals.archive > 0 && passed(sandbox.updated_at, intervals.archive) =>
        {
            Some(Order::Archive)
        }
        _ => None,
    }
}
