//! How long reconcile searches for the object of an unanswered create.
//!
//! A create may complete after its caller has died, so its record stays open for a window. The
//! window counts the time that this boot has been awake: neither NTP nor a suspend can end it early.
//! Where that time cannot be compared, the search restarts with a full window.

use std::time::Duration;

use creel_model::clock::{ClockReading, millis};

use super::lease::JUMP_TOLERANCE_MS;

/// The start of the search for an unanswered create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchWindow {
    /// When the search began: at the intent, or at its restart.
    pub from: ClockReading,
    /// The boot of that moment. Awake time can be compared only within one boot.
    pub boot: String,
}

/// The status of a search according to the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchStatus {
    /// The search continues for this many milliseconds.
    Open {
        /// The rest of the window.
        left_ms: i64,
    },
    /// The window has passed: no create can complete any more.
    Ended,
    /// The time since its start is unknown, so it restarts with a full window.
    Restart,
}

impl SearchWindow {
    /// Returns the status of the search.
    ///
    /// After a reboot, or when a clock went backwards, there is nothing to compare with. If wall
    /// clock and awake time moved apart during a window (a suspend, an NTP step, a paused virtual
    /// machine), one more full window is granted before the search ends.
    pub fn status(&self, window: Duration, now: ClockReading, boot: &str) -> SearchStatus {
        let window_ms = millis(window);
        if window_ms == 0 {
            return SearchStatus::Ended;
        }
        let awake = now.awake_ms - self.from.awake_ms;
        let wall = now.wall_ms - self.from.wall_ms;
        if self.boot != boot || awake < 0 {
            return SearchStatus::Restart;
        }
        if awake < window_ms {
            return SearchStatus::Open { left_ms: window_ms - awake };
        }
        if (wall - awake).abs() > JUMP_TOLERANCE_MS {
            return SearchStatus::Restart;
        }
        SearchStatus::Ended
    }
}

#[cfg(test)]
mod tests {
    use creel_model::clock::{Clock, ManualClock};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(600);
    const DAY_MS: i64 = 86_400_000;

    fn begun(clock: &ManualClock) -> SearchWindow {
        SearchWindow { from: clock.now(), boot: "b1".to_owned() }
    }

    fn status(search: &SearchWindow, clock: &ManualClock) -> SearchStatus {
        search.status(WINDOW, clock.now(), "b1")
    }

    #[test]
    fn a_search_ends_with_its_window() {
        let clock = ManualClock::at(1_000_000);
        let search = begun(&clock);
        clock.advance(Duration::from_secs(599));
        assert_eq!(status(&search, &clock), SearchStatus::Open { left_ms: 1000 });
        clock.advance(Duration::from_secs(1));
        assert_eq!(status(&search, &clock), SearchStatus::Ended);
    }

    #[test]
    fn a_wall_clock_that_jumps_ends_no_search_and_grants_a_full_window() {
        for jump in [DAY_MS, -DAY_MS] {
            let clock = ManualClock::at(10 * DAY_MS);
            let search = begun(&clock);
            clock.jump_wall(jump);
            assert_eq!(status(&search, &clock), SearchStatus::Open { left_ms: 600_000 });
            clock.advance(WINDOW);
            assert_eq!(status(&search, &clock), SearchStatus::Restart);
            let granted = begun(&clock);
            clock.advance(WINDOW);
            assert_eq!(status(&granted, &clock), SearchStatus::Ended);
        }
    }

    #[test]
    fn another_boot_starts_the_search_again() {
        let clock = ManualClock::at(10 * DAY_MS);
        let search = begun(&clock);
        clock.advance(Duration::from_secs(86_400));
        assert_eq!(search.status(WINDOW, clock.now(), "b2"), SearchStatus::Restart);
    }

    #[test]
    fn awake_time_that_goes_backwards_starts_the_search_again() {
        let clock = ManualClock::at(10 * DAY_MS);
        clock.advance(WINDOW * 9);
        let search = begun(&clock);
        let earlier = ClockReading { awake_ms: 0, ..clock.now() };
        assert_eq!(search.status(WINDOW, earlier, "b1"), SearchStatus::Restart);
    }

    #[test]
    fn without_a_window_nothing_is_searched_for() {
        let clock = ManualClock::at(10 * DAY_MS);
        let search = begun(&clock);
        assert_eq!(search.status(Duration::ZERO, clock.now(), "b2"), SearchStatus::Ended);
    }
}
