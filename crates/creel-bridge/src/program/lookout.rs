//! Waiting for whatever comes first.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long to wait before polling again where polling is not possible.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until one of these is ready or the instant has come; returns what each of them is.
///
/// An interrupted wait returns early with nothing: the caller looks at its clocks and comes back.
pub(crate) fn wait_for(
    watched: &[(BorrowedFd<'_>, PollFlags)],
    until: Option<Instant>,
) -> Vec<PollFlags> {
    let mut polled: Vec<PollFd<'_>> =
        watched.iter().map(|(fd, wanted)| PollFd::from_borrowed_fd(*fd, *wanted)).collect();
    // A little late is right, a little early would make a busy loop of the last millisecond.
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => polled.iter().map(PollFd::revents).collect(),
        Err(error) => {
            if error != Errno::INTR {
                // The kernel has no memory for this now: the next round may find some.
                thread::sleep(PAUSE);
            }
            vec![PollFlags::empty(); watched.len()]
        }
    }
}

/// Waits until one is ready; returns whether it was before the patience ended.
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
