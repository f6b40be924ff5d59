//! Estimates how long destroys take, to time the first check of a deleted sandbox.
//!
//! Requests are rate-limited, and a check that comes too early is wasted. The delay of the first
//! check is therefore learned. When a sandbox still exists at its first check, later checks start
//! later; when it is gone, they occasionally start a little sooner.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The delay of the first check before anything is learned.
const FIRST: Duration = Duration::from_secs(1);
/// The bounds of that delay.
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(8);
/// The factor after a check that came too early.
const LATER: f64 = 1.25;
/// The factor after checks that did not, and how often it is applied.
const SOONER: f64 = 0.9;
const SOONER_AFTER: Duration = Duration::from_secs(30);

/// The learned delay, and the sandboxes that were not checked yet.
#[derive(Debug)]
pub(super) struct Destroys(Mutex<Learned>);

#[derive(Debug)]
struct Learned {
    first_check_delay: Duration,
    changed_at: Instant,
    /// When each delete was accepted, until the first check.
    accepted: HashMap<String, Instant>,
}

impl Default for Destroys {
    fn default() -> Self {
        let (changed_at, accepted) = (Instant::now(), HashMap::new());
        Self(Mutex::new(Learned { first_check_delay: FIRST, changed_at, accepted }))
    }
}

impl Destroys {
    /// Returns how long after its delete a sandbox is first checked.
    pub(super) fn first_check_delay(&self) -> Duration {
        self.lock().first_check_delay
    }

    /// Records that a delete was accepted.
    pub(super) fn record_accepted(&self, id: &str) {
        self.lock().accepted.insert(id.to_owned(), Instant::now());
    }

    /// Learns from a check, if it is the first one after the delete.
    pub(super) fn record_check(&self, id: &str, is_there: bool) {
        let now = Instant::now();
        let mut learned = self.lock();
        let Some(accepted_at) = learned.accepted.remove(id) else { return };
        // Sandboxes deleted together are all checked too early together, so they raise the delay
        // once.
        let next = if is_there {
            (now - accepted_at).mul_f64(LATER).max(learned.first_check_delay)
        } else if now - learned.changed_at >= SOONER_AFTER {
            learned.first_check_delay.mul_f64(SOONER)
        } else {
            return;
        };
        learned.first_check_delay = next.clamp(SOONEST, LATEST);
        learned.changed_at = now;
    }

    fn lock(&self) -> MutexGuard<'_, Learned> {
        // A panic elsewhere leaves plain numbers, which stay usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Releases many sandboxes at once and returns how many were checked too early.
    async fn early(destroys: &Destroys, count: usize, duration: Duration) -> usize {
        let ids: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
        ids.iter().for_each(|id| destroys.record_accepted(id));
        let first_check_delay = destroys.first_check_delay();
        tokio::time::advance(first_check_delay).await;
        let is_there = first_check_delay < duration;
        ids.iter().for_each(|id| destroys.record_check(id, is_there));
        if is_there { count } else { 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_waves_find_the_time_and_keep_to_it() {
        let destroys = Destroys::default();
        let duration = Duration::from_millis(1500);
        assert_eq!(early(&destroys, 100, duration).await, 100);
        assert_eq!(early(&destroys, 100, duration).await, 100);
        let mut wasted = 0;
        for _ in 0..200 {
            wasted += early(&destroys, 100, duration).await;
        }
        assert!(wasted <= 1000, "{wasted} of 20,000 looks were wasted");
        assert!(destroys.first_check_delay() < duration * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_stuck_moves_little() {
        let destroys = Destroys::default();
        early(&destroys, 1, LATEST).await;
        assert_eq!(destroys.first_check_delay(), FIRST.mul_f64(LATER));
        destroys.record_check("s0", true);
        assert_eq!(destroys.first_check_delay(), FIRST.mul_f64(LATER));
    }
}
