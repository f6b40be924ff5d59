//! Waits for a condition instead of sleeping for a guessed time.

use std::thread;
use std::time::{Duration, Instant};

/// The polling interval.
const INTERVAL: Duration = Duration::from_millis(20);

/// Polls until the condition holds, and returns whether it did before the deadline.
#[must_use]
pub fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    eventually_some(deadline, || condition().then_some(())).is_some()
}

/// Polls until there is a value, and returns it, or `None` after the deadline.
#[must_use]
pub fn eventually_some<T>(deadline: Duration, mut value: impl FnMut() -> Option<T>) -> Option<T> {
    let started_at = Instant::now();
    loop {
        // The condition is checked once more after the deadline, because on a loaded machine the
        // last sleep may have been long.
        let late = started_at.elapsed() >= deadline;
        if let Some(value) = value() {
            return Some(value);
        }
        if late {
            return None;
        }
        thread::sleep(INTERVAL);
    }
}

/// Polls for the whole time, and returns whether the condition held at every check.
#[must_use]
pub fn throughout(duration: Duration, mut condition: impl FnMut() -> bool) -> bool {
    !eventually(duration, || !condition())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_becomes_true_is_detected() {
        let mut checks = 0;
        assert!(eventually(Duration::from_secs(5), || {
            checks += 1;
            checks == 3
        }));
    }

    #[test]
    fn a_condition_that_ends_is_detected() {
        let mut checks = 0;
        assert!(throughout(Duration::from_millis(30), || true));
        assert!(!throughout(Duration::from_secs(5), || {
            checks += 1;
            checks < 3
        }));
    }

    #[test]
    fn a_condition_that_never_holds_ends_at_the_deadline() {
        assert!(!eventually(Duration::from_millis(30), || false));
    }
}
