//! The watchdog: releases what a killed supervisor held.
//!
//! One process per supervisor, in its own session, asleep on a pidfd. It opens
//! the ledger only when the supervisor has ended, takes over what that one
//! still had, gives it back, and stays until creates that were under way have
//! either shown up or can no longer land.
//!
//! Where a service manager or CI kills the whole control group, the watchdog
//! dies with the rest; then the next mutating command or `creel reconcile` does
//! its work.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;
use tracing::warn;

use crate::ledger::LedgerError;
use crate::os::ProcessKey;
use crate::owner::Owner;
use crate::reconcile::{Reconciler, Status};

/// The first pause between searches for creates that may land late; later ones grow.
const FIRST_SEARCH: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_SEARCH: Duration = Duration::from_secs(10);

/// Watches over one process.
#[derive(Debug)]
pub struct Watch {
    /// Readable once the process has ended; `None` when it had ended before.
    pidfd: Option<OwnedFd>,
}

impl Watch {
    /// Starts to watch; a process that has ended, or whose pid is another's now, counts.
    ///
    /// # Errors
    ///
    /// Fails when the kernel gives no pidfd.
    pub fn over(process: ProcessKey) -> io::Result<Self> {
        let Some(pid) = Pid::from_raw(process.pid) else { return Ok(Self { pidfd: None }) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(Self { pidfd: None }),
            Err(error) => return Err(error.into()),
        };
        // Only after the pidfd is open is the start time a proof of whose it is.
        if !process.is_alive()? {
            return Ok(Self { pidfd: None });
        }
        Ok(Self { pidfd: Some(pidfd) })
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    ///
    /// Fails when the wait itself does.
    pub async fn ended(self) -> io::Result<()> {
        let Some(pidfd) = self.pidfd else { return Ok(()) };
        let (tell, told) = oneshot::channel();
        // A thread of its own: the runtime's blocking threads would keep it from ending.
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            // Nobody listens any more if the wait was dropped.
            let _ = tell.send(wait_until_readable(&pidfd));
        })?;
        told.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

fn wait_until_readable(pidfd: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives back what a dead owner left, and stays while creates may still land.
///
/// # Errors
///
/// Fails when the ledger cannot be used.
pub async fn reclaim(
    reconciler: &Reconciler,
    dead: &Owner,
    mut report: impl FnMut(&Status),
) -> Result<(), LedgerError> {
    let mut status = reconciler.inherit(dead).await?;
    report(&status);
    if status.examined == 0 {
        return Ok(());
    }
    let (mut pause, started) = (FIRST_SEARCH, Instant::now());
    while !status.is_final() {
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_SEARCH);
        status = reconciler.resume().await?;
        reconciler.close_runs(Some(dead), &mut status).await?;
        report(&status);
        // An engine that stays away, or somebody who goes on using what is ours, is left to the
        // next reconcile once nothing can land late.
        if status.open_intents == 0 && pause == LONGEST_SEARCH {
            break;
        }
        // A window that is told by a clock which was set back would not end.
        if started.elapsed() > reconciler.intent_window() + LONGEST_SEARCH {
            warn!(
                open_intents = status.open_intents,
                "late creates are left to the next reconcile"
            );
            break;
        }
    }
    // What landed late may have brought back what was released before it, as a container does
    // with its volume: only a look at the whole world shows that.
    report(&reconciler.round().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_killed_process_is_noticed_at_once() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessKey::of(child.id().cast_signed()).unwrap();
        let watch = Watch::over(key).unwrap();
        child.kill().unwrap();
        // The zombie is not reaped yet: the watch must not wait for that.
        tokio::time::timeout(Duration::from_secs(5), watch.ended()).await.unwrap().unwrap();
        child.wait().unwrap();
        let late = Watch::over(key).unwrap();
        tokio::time::timeout(Duration::from_secs(5), late.ended()).await.unwrap().unwrap();
    }
}
