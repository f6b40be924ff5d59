//! The lease: a file that changes with every renewal.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// The longest time between two looks.
const LONGEST_PERIOD: Duration = Duration::from_secs(5);
/// The shortest time between two looks.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// What is seen of the file: a renewal changes one of the two.
type Mark = (Option<SystemTime>, Vec<u8>);

/// A lease under watch, measured on the monotonic clock from the last change that was seen.
#[derive(Debug)]
pub(crate) struct Lease {
    file: PathBuf,
    length: Duration,
    seen: Option<Mark>,
    changed_at: Instant,
}

impl Lease {
    /// Starts the watch; the lease is fresh now.
    pub(crate) fn start(file: PathBuf, length: Duration) -> Self {
        let mut lease = Self { file, length, seen: None, changed_at: Instant::now() };
        lease.seen = lease.look();
        lease
    }

    /// Returns how long to wait between two looks.
    pub(crate) fn period(&self) -> Duration {
        (self.length / 4).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)
    }

    /// Looks again; returns whether the lease has run out.
    pub(crate) fn has_run_out(&mut self) -> bool {
        // A file that cannot be read is no sign of life.
        if let Some(now) = self.look()
            && self.seen.as_ref() != Some(&now)
        {
            self.seen = Some(now);
            self.changed_at = Instant::now();
        }
        self.changed_at.elapsed() >= self.length
    }

    /// Counts as a renewal what was not written to the file.
    pub(crate) fn renew(&mut self) {
        self.changed_at = Instant::now();
    }

    /// Returns how long the lease is.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    fn look(&self) -> Option<Mark> {
        let changed_at = fs::metadata(&self.file).ok()?.modified().ok();
        Some((changed_at, fs::read(&self.file).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_of_the_file_renews_the_lease() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("lease");
        fs::write(&file, "1").unwrap();
        let mut lease = Lease::start(file.clone(), Duration::from_secs(3600));
        let long_ago = Instant::now() - Duration::from_secs(1800);
        lease.changed_at = long_ago;
        assert!(!lease.has_run_out());
        assert_eq!(lease.changed_at, long_ago);
        fs::write(&file, "2").unwrap();
        assert!(!lease.has_run_out());
        assert!(lease.changed_at > long_ago);
    }

    #[test]
    fn a_missing_file_is_no_sign_of_life() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("lease");
        fs::write(&file, "1").unwrap();
        let mut lease = Lease::start(file.clone(), Duration::from_millis(10));
        fs::remove_file(&file).unwrap();
        lease.changed_at = Instant::now() - Duration::from_secs(1);
        assert!(lease.has_run_out());
    }
}
