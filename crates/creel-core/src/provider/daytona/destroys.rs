//! How long destroys take here: the first look at a deleted sandbox comes when it is worth it.
//!
//! Looks are counted, and one that comes too early is wasted. So the time of
//! the first look is learned: where the sandbox is still there, later ones are
//! looked at later; where it was gone, now and then a little sooner.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The first look where nothing is known.
const FIRST: Duration = Duration::from_secs(1);
/// No first look comes sooner or later than these.
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(8);
/// How much later after a look that came too early.
const LATER: f64 = 1.25;
/// How much sooner, and how often, after looks that did not.
const SOONER: f64 = 0.9;
const SOONER_AFTER: Duration = Duration::from_secs(30);

/// What was learned, and the sandboxes that were not looked at yet.
#[derive(Debug)]
pub(super) struct Destroys(Mutex<Learned>);

#[derive(Debug)]
struct Learned {
    first_look: Duration,
    changed_at: Instant,
    /// When each delete was ordered, until the first look.
    ordered: HashMap<String, Instant>,
}

impl Default for Destroys {
    fn default() -> Self {
        let (changed_at, ordered) = (Instant::now(), HashMap::new());
        Self(Mutex::new(Learned { first_look: FIRST, changed_at, ordered }))
    }
}

impl Destroys {
    /// Returns how long after its order a sandbox is looked at first.
    pub(super) fn first_look(&self) -> Duration {
        self.lock().first_look
    }

    /// Notes that a delete was taken.
    pub(super) fn ordered(&self, id: &str) {
        self.lock().ordered.insert(id.to_owned(), Instant::now());
    }

    /// Learns from a look, if it is the first one after the order.
    pub(super) fn looked(&self, id: &str, is_there: bool) {
        let now = Instant::now();
        let mut learned = self.lock();
        let Some(ordered_at) = learned.ordered.remove(id) else { return };
        // All that were ordered together come too early together, and say it once.
        let next = if is_there {
            (now - ordered_at).mul_f64(LATER).max(learned.first_look)
        } else if now - learned.changed_at >= SOONER_AFTER {
            learned.first_look.mul_f64(SOONER)
        } else {
            return;
        };
        learned.first_look = next.clamp(SOONEST, LATEST);
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

    /// Releases many at once and returns how many were looked at too early.
    async fn early(destroys: &Destroys, count: usize, takes: Duration) -> usize {
        let ids: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
        ids.iter().for_each(|id| destroys.ordered(id));
        let first_look = destroys.first_look();
        tokio::time::advance(first_look).await;
        let is_there = first_look < takes;
        ids.iter().for_each(|id| destroys.looked(id, is_there));
        if is_there { count } else { 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_waves_find_the_time_and_keep_to_it() {
        let destroys = Destroys::default();
        let takes = Duration::from_millis(1500);
        assert_eq!(early(&destroys, 100, takes).await, 100);
        assert_eq!(early(&destroys, 100, takes).await, 100);
        let mut wasted = 0;
        for _ in 0..200 {
            wasted += early(&destroys, 100, takes).await;
        }
        assert!(wasted <= 1000, "{wasted} of 20,000 looks were wasted");
        assert!(destroys.first_look() < takes * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_stuck_moves_little() {
        let destroys = Destroys::default();
        early(&destroys, 1, LATEST).await;
        assert_eq!(destroys.first_look(), FIRST.mul_f64(LATER));
        destroys.looked("s0", true);
        assert_eq!(destroys.first_look(), FIRST.mul_f64(LATER));
    }
}
