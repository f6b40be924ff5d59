//! Time: the wall for people, the monotonic clock for leases.
//!
//! A lease must not end because a laptop slept or NTP moved the wall clock, so
//! leases are measured on the monotonic clock of one boot and the wall clock
//! is only the fallback between boots.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on both clocks, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds since the Unix epoch.
    pub wall_ms: i64,
    /// Milliseconds this boot has been awake.
    pub awake_ms: i64,
}

impl Moment {
    /// Returns the wall time for people.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::from_millisecond(self.wall_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// Where the present time comes from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the present moment.
    fn now(&self) -> Moment;
}

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let awake = clock_gettime(ClockId::Monotonic);
        Moment {
            wall_ms: Timestamp::now().as_millisecond(),
            awake_ms: awake.tv_sec * 1000 + awake.tv_nsec / 1_000_000,
        }
    }
}

/// A clock that tests turn by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall_ms: AtomicI64,
    awake_ms: AtomicI64,
}

impl ManualClock {
    /// Makes a clock that shows the given wall time.
    pub fn at(wall_ms: i64) -> Self {
        Self { wall_ms: AtomicI64::new(wall_ms), awake_ms: AtomicI64::new(0) }
    }

    /// Lets time pass on both clocks.
    pub fn advance(&self, by: Duration) {
        let by = millis(by);
        self.wall_ms.fetch_add(by, Ordering::SeqCst);
        self.awake_ms.fetch_add(by, Ordering::SeqCst);
    }

    /// Moves the wall clock alone, as NTP or a suspend does.
    pub fn jump_wall(&self, by_ms: i64) {
        self.wall_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment {
            wall_ms: self.wall_ms.load(Ordering::SeqCst),
            awake_ms: self.awake_ms.load(Ordering::SeqCst),
        }
    }
}

/// Returns a duration in whole milliseconds, saturating.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the present time in milliseconds since the epoch, for what is only shown.
pub fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
