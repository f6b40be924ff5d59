//! Noticing that a log has grown, without asking it all the time.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// How long to wait before looking anyway: not every file system tells of changes.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// How long to wait after a change, since writes come in groups.
const GATHER: Duration = Duration::from_millis(25);

/// Watches over the files of a ledger and its log.
#[derive(Debug)]
pub struct LogWatch {
    /// The kernel's notices; `None` where it gives none.
    notices: Option<Receiver>,
}

impl LogWatch {
    /// Starts to watch; what is written after this is noticed.
    ///
    /// Where the kernel gives no notices, the watch looks every second.
    pub fn over(home: &Path) -> Self {
        Self { notices: notices_of(home).ok() }
    }

    /// Waits until something was written, or a second has passed.
    pub async fn changed(&mut self) {
        let Some(notices) = &self.notices else {
            return tokio::time::sleep(LOOK_ANYWAY).await;
        };
        match tokio::time::timeout(LOOK_ANYWAY, notices.readable()).await {
            Ok(Ok(())) => {
                tokio::time::sleep(GATHER).await;
                drain(notices);
            }
            Ok(Err(_)) => tokio::time::sleep(LOOK_ANYWAY).await,
            Err(_) => {}
        }
    }
}

fn notices_of(home: &Path) -> io::Result<Receiver> {
    let notices = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&notices, home, WatchFlags::MODIFY)?;
    // Not a pipe, but read like one: readable when there is something, and by the same call.
    Receiver::from_owned_fd_unchecked(notices)
}

/// Reads the notices away; what they say does not matter.
fn drain(notices: &Receiver) {
    let mut buffer = [0_u8; 4096];
    while notices.try_read(&mut buffer).is_ok_and(|count| count > 0) {}
}
