//! Waits for the first of several events.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long to wait when `poll` fails.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until one of these is ready or the instant has come, and returns the flags of each.
///
/// An interrupted wait returns early without flags; the caller checks its deadlines and calls
/// again.
pub(crate) fn wait_for(
    watched: &[(BorrowedFd<'_>, PollFlags)],
    until: Option<Instant>,
) -> Vec<PollFlags> {
    let mut polled: Vec<PollFd<'_>> =
        watched.iter().map(|(fd, wanted)| PollFd::from_borrowed_fd(*fd, *wanted)).collect();
    // A little late is fine. A little early would cause a busy loop in the last millisecond.
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled.iter().map(PollFd::revents).collect(),
        Err(error) => {
            if error != Errno::INTR {
                // The kernel is out of memory for this call; a later call may succeed.
                thread::sleep(PAUSE);
            }
            vec![PollFlags::empty(); watched.len()]
        }
    }
}

/// Waits until the descriptor is ready, and returns whether it was within `patience`.
pub(crate) fn is_ready_within(fd: BorrowedFd<'_>, wanted: PollFlags, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        if !wait_for(&[(fd, wanted)], Some(until))[0].is_empty() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
}
