//! Watches directories for changes without constant polling.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// The polling interval when changes are reported.
const SLOW: Duration = Duration::from_secs(1);
/// The polling interval when they are not.
const FAST: Duration = Duration::from_millis(50);

/// A watch over files and directories. It is only a hint: its users must still poll from time to
/// time, because some sandboxes have no inotify, or too few watches.
#[derive(Debug)]
pub(crate) struct PathWatch {
    changes: Option<OwnedFd>,
}

impl PathWatch {
    /// Watches these paths.
    pub(crate) fn over<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let watch = || {
            let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            let kinds = WatchFlags::CLOSE_WRITE
                | WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::MOVED_TO;
            for path in paths {
                inotify::add_watch(&changes, path, kinds)?;
            }
            rustix::io::Result::Ok(changes)
        };
        Self { changes: watch().ok() }
    }

    /// Returns what to poll for.
    pub(crate) fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.changes.as_ref().map(|changes| (changes.as_fd(), PollFlags::IN))
    }

    /// Returns the polling interval to use besides the watch.
    pub(crate) fn period(&self) -> Duration {
        if self.changes.is_some() { SLOW } else { FAST }
    }

    /// Discards pending notifications. The caller checks the files afterwards.
    pub(crate) fn drain(&self) {
        let mut events = [0; 4096];
        while let Some(changes) = &self.changes
            && matches!(rustix::io::read(changes, &mut events), Ok(count) if count > 0)
        {}
    }
}
