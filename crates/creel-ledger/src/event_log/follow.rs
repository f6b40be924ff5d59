//! Detects that a log has grown, without frequent polling.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// How long to wait before polling. Not every file system reports changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait after a change, because writes come in groups.
const GATHER: Duration = Duration::from_millis(25);

/// Watches the files of a ledger and its log.
#[derive(Debug)]
pub struct LogWatch {
    /// The kernel's notifications, or `None` if they are not available.
    notices: Option<Receiver>,
}

impl LogWatch {
    /// Starts to watch. Later writes are detected.
    ///
    /// Without notifications from the kernel, the watch polls every second.
    pub fn over(home: &Path) -> Self {
        Self { notices: notices_of(home).ok() }
    }

    /// Waits until something was written, or a second has passed.
    pub async fn changed(&mut self) {
        let Some(notices) = &self.notices else {
            return tokio::time::sleep(POLL_INTERVAL).await;
        };
        match tokio::time::timeout(POLL_INTERVAL, notices.readable()).await {
            Ok(Ok(())) => {
                tokio::time::sleep(GATHER).await;
                drain(notices);
            }
            Ok(Err(_)) => tokio::time::sleep(POLL_INTERVAL).await,
            Err(_) => {}
        }
    }
}

fn notices_of(home: &Path) -> io::Result<Receiver> {
    let notices = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&notices, home, WatchFlags::MODIFY)?;
    // Not a pipe, but it is read like one: it becomes readable when there is data.
    Receiver::from_owned_fd_unchecked(notices)
}

/// Discards the pending notifications. Their content does not matter.
fn drain(notices: &Receiver) {
    let mut buffer = [0_u8; 4096];
    while notices.try_read(&mut buffer).is_ok_and(|count| count > 0) {}
}
