//! Auto-stop, auto-archive, auto-delete and time to live.
//!
//! Looked at on a period, as the real service does. Auto-delete looks only at
//! stopped sandboxes: one in error stays. Time to live looks at no state.

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
        for (id, order) in due {
            // Somebody may have been faster; the next round looks again.
            let _ = shared.order(&id.to_string(), order, &Mischief::default());
        }
    }
}

fn due(shared: &Shared, sandbox: &Sandbox, now: Moment) -> Option<Order> {
    let minutes = |count: i64| shared.delays.minute * u32::try_from(count).unwrap_or(u32::MAX);
    let passed = |since: Moment, count: i64| since.plus(minutes(count)) <= now;
    let intervals = &sandbox.intervals;
    if sandbox.destroy_at.is_some_and(|at| at <= now) {
        return Some(Order::Destroy);
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
