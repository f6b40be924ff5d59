//! Compares the wall clock with the time since boot, so that a step of the wall clock proves
//! nothing.
//!
//! Engines stamp what they create with the wall clock, and the kernel stamps processes with the
//! time since boot. A moment that is known on both clocks, such as the start of a container's first
//! process, is a [`Reading`]. If all readings have the same offset between the two clocks, the wall
//! clock was not moved between them. Otherwise an object with a wall time may be younger than it
//! seems, and the reading that makes it youngest counts.

use std::time::Duration;

use creel_model::clock::millis;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Tolerated difference of the clock offset between two readings.
///
/// The two times of one reading are never taken at exactly the same moment.
const TOLERANCE_MS: i64 = 5_000;

/// One moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock.
    pub wall: Timestamp,
    /// The time since boot.
    pub boot: Duration,
}

impl Reading {
    /// Reads both clocks.
    pub fn now() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(boot.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(boot.tv_nsec).unwrap_or_default();
        Self { wall: Timestamp::now(), boot: Duration::new(seconds, nanos) }
    }

    fn distance_ms(&self) -> i64 {
        self.wall.as_millisecond() - millis(self.boot)
    }
}

/// The readings of both clocks since boot.
#[derive(Debug, Clone)]
pub struct Clocks {
    now: Reading,
    earlier: Vec<Reading>,
}

impl Clocks {
    /// Starts with the reading for the present.
    pub fn new(now: Reading) -> Self {
        Self { now, earlier: Vec::new() }
    }

    /// Adds a moment of this boot that is known on both clocks.
    pub fn add(&mut self, reading: Reading) {
        self.earlier.push(reading);
    }

    /// Returns the minimum age of something with this wall time; `None` if that is in the future.
    pub(super) fn age(&self, wall: Timestamp) -> Option<Duration> {
        let passed = self.now.wall.duration_since(wall);
        if passed.is_negative() {
            return None;
        }
        if self.is_steady() {
            return Some(passed.unsigned_abs());
        }
        Some(self.now.boot.saturating_sub(self.latest_creation(wall)))
    }

    /// Returns the latest time since boot at which something with this wall time was made.
    ///
    /// What is older than the first reading was made before it, at an unknown time.
    pub(super) fn latest_creation(&self, wall: Timestamp) -> Duration {
        let since_boot = wall.as_millisecond() - self.least_distance_ms();
        let since_boot = Duration::from_millis(u64::try_from(since_boot).unwrap_or_default());
        since_boot.max(self.first().boot)
    }

    /// Returns whether the wall clock was not set forward since the first reading.
    pub(super) fn is_steady(&self) -> bool {
        self.now.distance_ms() - self.least_distance_ms() <= TOLERANCE_MS
    }

    fn least_distance_ms(&self) -> i64 {
        let readings = self.earlier.iter().map(Reading::distance_ms);
        readings.fold(self.now.distance_ms(), i64::min)
    }

    fn first(&self) -> Reading {
        let earlier = self.earlier.iter().copied();
        earlier.min_by_key(|reading| reading.boot).unwrap_or(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;

    fn reading(wall: u64, boot: u64) -> Reading {
        let wall = Timestamp::from_second(1_000_000 + i64::try_from(wall).unwrap()).unwrap();
        Reading { wall, boot: Duration::from_secs(boot) }
    }

    /// Clocks at ten hours after boot, with the wall clock set forward by this much after the first
    /// reading.
    fn stepped(by: u64) -> Clocks {
        let mut clocks = Clocks::new(reading(10 * HOUR + by, 10 * HOUR));
        clocks.add(reading(HOUR, HOUR));
        clocks
    }

    #[test]
    fn a_steady_clock_is_trusted() {
        let clocks = stepped(3);
        let created = reading(9 * HOUR, 0).wall;
        assert!(clocks.is_steady());
        assert_eq!(clocks.age(created), Some(Duration::from_secs(HOUR + 3)));
        assert_eq!(clocks.latest_creation(created), Duration::from_secs(9 * HOUR));
        assert_eq!(clocks.age(reading(11 * HOUR, 0).wall), None);
    }

    #[test]
    fn a_step_forward_makes_nothing_older() {
        let clocks = stepped(24 * HOUR);
        let created = reading(9 * HOUR, 0).wall;
        assert!(!clocks.is_steady());
        assert_eq!(clocks.age(created), Some(Duration::from_secs(HOUR)));
        assert_eq!(clocks.latest_creation(created), Duration::from_secs(9 * HOUR));
        // Made after the step: its wall time may also be one from before the step.
        let after = reading(34 * HOUR, 0).wall;
        assert_eq!(clocks.age(after), Some(Duration::ZERO));
    }

    #[test]
    fn a_step_back_makes_things_younger_or_of_no_age() {
        let mut clocks = Clocks::new(reading(8 * HOUR, 10 * HOUR));
        clocks.add(reading(HOUR, HOUR));
        assert_eq!(clocks.age(reading(9 * HOUR, 0).wall), None);
        assert_eq!(clocks.age(reading(5 * HOUR, 0).wall), Some(Duration::from_secs(3 * HOUR)));
        // Its wall time puts its creation two hours too late, so more processes count as older.
        assert_eq!(
            clocks.latest_creation(reading(5 * HOUR, 0).wall),
            Duration::from_secs(7 * HOUR)
        );
    }

    #[test]
    fn what_is_older_than_the_first_reading_was_created_before_it() {
        let clocks = stepped(0);
        let created = Timestamp::from_second(900_000).unwrap();
        assert_eq!(clocks.latest_creation(created), Duration::from_secs(HOUR));
        let alone = Clocks::new(reading(10 * HOUR, 10 * HOUR));
        assert_eq!(alone.latest_creation(created), Duration::from_secs(10 * HOUR));
    }

    #[test]
    fn both_clocks_are_read() {
        let now = Reading::now();
        assert!(now.boot > Duration::ZERO && now.wall <= Timestamp::now());
    }
}
