//! Time: the wall clock for display, the monotonic clock for leases.
//!
//! A lease must not end because a laptop slept or NTP moved the wall clock. Leases are therefore
//! measured on the monotonic clock of one boot. The wall clock is only the fallback between boots.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on both clocks, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Milliseconds since the Unix epoch.
    pub wall_ms: i64,
    /// Milliseconds that this boot has been awake.
    pub awake_ms: i64,
}

impl ClockReading {
    /// Returns the wall time for display.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::from_millisecond(self.wall_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// The source of the current time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the current moment.
    fn now(&self) -> ClockReading;
}

/// The system clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> ClockReading {
        let awake = clock_gettime(ClockId::Monotonic);
        ClockReading {
            wall_ms: Timestamp::now().as_millisecond(),
            awake_ms: awake.tv_sec * 1000 + awake.tv_nsec / 1_000_000,
        }
    }
}

/// A clock that tests advance manually.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall_ms: AtomicI64,
    awake_ms: AtomicI64,
}

impl ManualClock {
    /// Creates a clock that shows the given wall time.
    pub fn at(wall_ms: i64) -> Self {
        Self { wall_ms: AtomicI64::new(wall_ms), awake_ms: AtomicI64::new(0) }
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        let by = millis(by);
        self.wall_ms.fetch_add(by, Ordering::SeqCst);
        self.awake_ms.fetch_add(by, Ordering::SeqCst);
    }

    /// Moves only the wall clock, as NTP or a suspend does.
    pub fn jump_wall(&self, by_ms: i64) {
        self.wall_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> ClockReading {
        ClockReading {
            wall_ms: self.wall_ms.load(Ordering::SeqCst),
            awake_ms: self.awake_ms.load(Ordering::SeqCst),
        }
    }
}

/// Returns a duration in whole milliseconds, saturating.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the current time in milliseconds since the epoch, for display only.
pub fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
