//! The lease of a tree: a file that changes with every renewal.
//!
//! The holder measures on its own monotonic clock when the file last changed. Neither a jump of the
//! wall clock nor a suspended machine therefore ends a tree whose supervisor is alive.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;

/// The longest time between two checks of the lease.
const LONGEST_PERIOD: Duration = Duration::from_secs(5);
/// The shortest time between two checks of the lease.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// Renews a lease.
pub(super) fn renew(file: &Path) -> io::Result<()> {
    fs::write(file, Uuid::new_v4().to_string())
}

/// Watches a lease from within the holder.
#[derive(Debug)]
pub(super) struct LeaseWatch {
    file: PathBuf,
    lease: Duration,
    seen: Option<Vec<u8>>,
    changed_at: Instant,
}

impl LeaseWatch {
    /// Starts the watch; the lease counts as renewed now.
    pub(super) fn start(file: PathBuf, lease: Duration) -> Self {
        let seen = fs::read(&file).ok();
        Self { file, lease, seen, changed_at: Instant::now() }
    }

    /// Returns how long to wait between two checks.
    pub(super) fn period(&self) -> Duration {
        (self.lease / 4).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)
    }

    /// Checks the file again; returns whether the lease has expired.
    pub(super) fn has_expired(&mut self) -> bool {
        // A file that cannot be read does not count as a renewal.
        if let Ok(now) = fs::read(&self.file)
            && self.seen.as_ref() != Some(&now)
        {
            self.seen = Some(now);
            self.changed_at = Instant::now();
        }
        self.changed_at.elapsed() >= self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_lease_file_is_no_sign_of_life() {
        let home = tempfile::tempdir().expect("a directory can be made");
        let file = home.path().join("lease");
        renew(&file).expect("the file can be written");
        let mut watch = LeaseWatch::start(file.clone(), Duration::ZERO);
        assert!(watch.has_expired());
        let mut watch = LeaseWatch::start(file.clone(), Duration::from_secs(3600));
        fs::remove_file(&file).expect("it was written above");
        assert!(!watch.has_expired());
        assert_eq!(watch.period(), LONGEST_PERIOD);
    }
}
