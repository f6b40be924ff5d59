//! A deadline: when an operation must have ended.
//!
//! It is created with the operation and goes with every call ([`Provider::within`]). While a request
//! waits for its admission, the provider pauses the deadline: a rate limit says nothing about the
//! health of the provider, so the wait does not count.
//!
//! [`Provider::within`]: crate::provider::Provider::within

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// When an operation must have ended. Clones are the same deadline.
#[derive(Debug, Clone, Default)]
pub struct Deadline(Option<Arc<Mutex<DeadlineState>>>);

#[derive(Debug)]
struct DeadlineState {
    /// The end, without the current pause.
    ends_at: Instant,
    /// When the current pause started.
    paused_at: Option<Instant>,
}

/// Ends a pause, including that of a cancelled wait.
struct Pause<'a>(&'a Mutex<DeadlineState>);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let mut clock = lock(self.0);
        if let Some(paused_at) = clock.paused_at.take() {
            clock.ends_at += paused_at.elapsed();
        }
    }
}

fn lock(clock: &Mutex<DeadlineState>) -> MutexGuard<'_, DeadlineState> {
    // A panic elsewhere leaves plain instants, which stay usable.
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deadline {
    /// No deadline.
    pub const NONE: Self = Self(None);

    /// Returns a deadline this long from now.
    pub fn after(limit: Duration) -> Self {
        let clock = DeadlineState { ends_at: Instant::now() + limit, paused_at: None };
        Self(Some(Arc::new(Mutex::new(clock))))
    }

    /// Waits without counting the time.
    ///
    /// An operation has at most one such wait at a time.
    pub async fn pause_during<T>(&self, wait: impl Future<Output = T>) -> T {
        let Some(clock) = &self.0 else { return wait.await };
        lock(clock).paused_at.get_or_insert_with(Instant::now);
        let _pause = Pause(clock);
        wait.await
    }

    /// Moves the end.
    pub(super) fn extend(&self, by: Duration) {
        if let Some(clock) = &self.0 {
            lock(clock).ends_at += by;
        }
    }

    /// Returns whether it ends within this time.
    pub(super) fn ends_within(&self, time: Duration) -> bool {
        self.ends_at().is_some_and(|ends_at| Instant::now() + time >= ends_at)
    }

    /// Runs an operation, and returns `None` if it did not end in time.
    pub(super) async fn limit<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        let mut operation = pin!(operation);
        loop {
            let Some(ends_at) = self.ends_at() else { return Some(operation.await) };
            match tokio::time::timeout_at(ends_at, &mut operation).await {
                Ok(result) => return Some(result),
                Err(_) if self.ends_within(Duration::ZERO) => return None,
                // It was paused meanwhile.
                Err(_) => {}
            }
        }
    }

    /// Returns the end as it is now: later with every moment of a pause.
    fn ends_at(&self) -> Option<Instant> {
        let clock = lock(self.0.as_ref()?);
        let pause = clock.paused_at.map_or(Duration::ZERO, |paused_at| paused_at.elapsed());
        Some(clock.ends_at + pause)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_pause_moves_the_end_and_a_cancelled_pause_does_too() {
        let start = Instant::now();
        let deadline = Deadline::after(10 * SECOND);
        let clone = deadline.clone();
        let operation = async {
            clone.pause_during(sleep(20 * SECOND)).await;
            let _ = tokio::time::timeout(5 * SECOND, clone.pause_during(sleep(SECOND * 60))).await;
            std::future::pending::<()>().await;
        };
        assert_eq!(deadline.limit(operation).await, None);
        assert_eq!(start.elapsed(), 35 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_deadline_nothing_ends_early() {
        let operation = Deadline::NONE.pause_during(sleep(SECOND * 100_000));
        assert_eq!(Deadline::NONE.limit(operation).await, Some(()));
        assert!(!Deadline::NONE.ends_within(SECOND));
    }
}
