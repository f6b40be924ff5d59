//! Leases: how long a resource may live without a sign of its owner.

use std::time::Duration;

use creel_model::clock::{ClockReading, millis};
use serde::{Deserialize, Serialize};

/// How far the two clocks may drift apart before the drift counts as a jump.
pub(super) const JUMP_TOLERANCE_MS: i64 = 5_000;

/// A lease and when it was last renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// How long it runs after each renewal, in milliseconds.
    pub duration_ms: i64,
    /// The last renewal.
    pub renewed: ClockReading,
    /// The boot in which it was renewed. Awake time can be compared only within one boot.
    pub boot: String,
}

/// The status of a lease according to the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStatus {
    /// It runs.
    Running,
    /// It has expired.
    Expired,
    /// It would have expired, but a clock jumped in between: grant one more full lease.
    ClockJumped,
}

impl Lease {
    /// Creates a lease that starts now.
    pub fn starting(duration: Duration, now: ClockReading, boot: String) -> Self {
        Self { duration_ms: millis(duration), renewed: now, boot }
    }

    /// Returns the status of the lease.
    ///
    /// Within one boot, neither a suspend nor NTP ends a lease. If wall and awake time have moved
    /// apart, the status is [`LeaseStatus::ClockJumped`] instead of expired. After a reboot, only
    /// the wall clock is left.
    pub fn status(&self, now: ClockReading, boot: &str) -> LeaseStatus {
        let wall = now.wall_ms - self.renewed.wall_ms;
        if self.boot != boot {
            return if wall > self.duration_ms || wall < -JUMP_TOLERANCE_MS {
                LeaseStatus::Expired
            } else {
                LeaseStatus::Running
            };
        }
        let awake = now.awake_ms - self.renewed.awake_ms;
        if awake.max(wall) <= self.duration_ms {
            return LeaseStatus::Running;
        }
        if (wall - awake).abs() > JUMP_TOLERANCE_MS {
            return LeaseStatus::ClockJumped;
        }
        LeaseStatus::Expired
    }
}

#[cfg(test)]
mod tests {
    use creel_model::clock::{Clock, ManualClock};

    use super::*;

    fn lease(clock: &ManualClock) -> Lease {
        Lease::starting(Duration::from_secs(60), clock.now(), "b1".to_owned())
    }

    #[test]
    fn a_lease_ends_after_its_time() {
        let clock = ManualClock::at(1_000_000);
        let lease = lease(&clock);
        clock.advance(Duration::from_secs(60));
        assert_eq!(lease.status(clock.now(), "b1"), LeaseStatus::Running);
        clock.advance(Duration::from_secs(1));
        assert_eq!(lease.status(clock.now(), "b1"), LeaseStatus::Expired);
    }

    #[test]
    fn a_jump_of_the_wall_clock_grants_one_full_lease() {
        let clock = ManualClock::at(1_000_000);
        let lease = lease(&clock);
        clock.jump_wall(3_600_000);
        assert_eq!(lease.status(clock.now(), "b1"), LeaseStatus::ClockJumped);
        let granted = Lease { renewed: clock.now(), ..lease };
        clock.advance(Duration::from_secs(61));
        assert_eq!(granted.status(clock.now(), "b1"), LeaseStatus::Expired);
    }

    #[test]
    fn a_wall_clock_set_back_does_not_keep_a_lease_for_ever() {
        let clock = ManualClock::at(10_000_000);
        let lease = lease(&clock);
        clock.jump_wall(-3_600_000);
        clock.advance(Duration::from_secs(120));
        assert_eq!(lease.status(clock.now(), "b1"), LeaseStatus::ClockJumped);
    }

    #[test]
    fn after_a_reboot_the_wall_clock_decides() {
        let clock = ManualClock::at(1_000_000);
        let lease = lease(&clock);
        clock.advance(Duration::from_secs(30));
        assert_eq!(lease.status(clock.now(), "b2"), LeaseStatus::Running);
        clock.advance(Duration::from_secs(31));
        assert_eq!(lease.status(clock.now(), "b2"), LeaseStatus::Expired);
    }
}
