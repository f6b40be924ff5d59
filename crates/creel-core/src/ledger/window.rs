//! How long the object of an unanswered create is searched for.
//!
//! A create may land after its caller has died, so its record stays open for a window. The window
//! counts the time that this boot has been awake: neither NTP nor a suspend can end it early.
//! Where that time cannot be compared, the search starts again with a full window.

use std::time::Duration;

use crate::clock::{Moment, millis};

use super::lease::JUMP_TOLERANCE_MS;

/// Since when an unanswered create is searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchWindow {
    /// When the search began: with the intent, or when it was started again.
    pub from: Moment,
    /// The boot of that moment: awake time can be compared only within one.
    pub boot: String,
}

/// What the clocks say of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchStatus {
    /// It goes on for this many milliseconds.
    Open {
        /// The rest of the window.
        left_ms: i64,
    },
    /// The window has passed: nothing can land any more.
    Ended,
    /// The time since its start is not known: it starts again with a full window.
    Restart,
}

impl SearchWindow {
    /// Judges the search.
    ///
    /// Another boot, or a clock that went backwards, leaves nothing to compare with. A window
    /// during which wall clock and awake time moved apart (a suspend, a step of NTP, a virtual
    /// machine that was paused) is granted once more in full before it ends.
    pub fn status(&self, window: Duration, now: Moment, boot: &str) -> SearchStatus {
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
    use super::*;
    use crate::clock::{Clock, ManualClock};

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
        let earlier = Moment { awake_ms: 0, ..clock.now() };
        assert_eq!(search.status(WINDOW, earlier, "b1"), SearchStatus::Restart);
    }

    #[test]
    fn without_a_window_nothing_is_searched_for() {
        let clock = ManualClock::at(10 * DAY_MS);
        let search = begun(&clock);
        assert_eq!(search.status(Duration::ZERO, clock.now(), "b2"), SearchStatus::Ended);
    }
}
