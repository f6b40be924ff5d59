//! The lease: a file that changes with every renewal.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// The longest time between two checks.
const LONGEST_PERIOD: Duration = Duration::from_secs(5);
/// The shortest time between two checks.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// The observed state of the file. A renewal changes one of the two.
type Mark = (Option<SystemTime>, Vec<u8>);

/// A lease, measured on the monotonic clock from the last observed change.
#[derive(Debug)]
pub(crate) struct FileLease {
    file: PathBuf,
    length: Duration,
    seen: Option<Mark>,
    changed_at: Instant,
}

impl FileLease {
    /// Starts to watch the lease, which counts as just renewed.
    pub(crate) fn start(file: PathBuf, length: Duration) -> Self {
        let mut lease = Self { file, length, seen: None, changed_at: Instant::now() };
        lease.seen = lease.read_mark();
        lease
    }

    /// Returns how long to wait between two checks.
    pub(crate) fn period(&self) -> Duration {
        (self.length / 4).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)
    }

    /// Checks the file, and returns whether the lease has expired.
    pub(crate) fn has_run_out(&mut self) -> bool {
        // A file that cannot be read is not a renewal.
        if let Some(now) = self.read_mark()
            && self.seen.as_ref() != Some(&now)
        {
            self.seen = Some(now);
            self.changed_at = Instant::now();
        }
        self.changed_at.elapsed() >= self.length
    }

    /// Renews the lease without a change of the file.
    pub(crate) fn renew(&mut self) {
        self.changed_at = Instant::now();
    }

    /// Returns the length of the lease.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    fn read_mark(&self) -> Option<Mark> {
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
        let mut lease = FileLease::start(file.clone(), Duration::from_secs(3600));
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
        let mut lease = FileLease::start(file.clone(), Duration::from_millis(10));
        fs::remove_file(&file).unwrap();
        lease.changed_at = Instant::now() - Duration::from_secs(1);
        assert!(lease.has_run_out());
    }
}
