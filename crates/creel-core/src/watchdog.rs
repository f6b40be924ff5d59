//! The watchdog: releases what a killed supervisor held.
//!
//! There is one watchdog process per supervisor. It runs in its own session and sleeps on a pidfd.
//! When the supervisor has ended, it opens the ledger, takes over the supervisor's remaining
//! resources and releases them. It stays until pending creates have either appeared or can no
//! longer complete. On a full disk it stays until there is room to record what it did, however long
//! that takes: a person has to notice it and make room.
//!
//! Where a service manager or CI kills the whole control group, the watchdog dies too. The next
//! mutating command or `creel reconcile` then does its work.

use std::io;
use std::time::{Duration, Instant};

use creel_ledger::LedgerError;
use creel_ledger::WhenFull;
use creel_model::os::ProcessKey;
use creel_model::owner::Owner;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;
use tracing::warn;

use crate::reconcile::{Reconciler, Status};

/// The first pause between searches for creates that may complete late. Later pauses grow.
const FIRST_SEARCH: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_SEARCH: Duration = Duration::from_secs(10);
/// The pause between two rounds while the disk is full.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(5);

/// Watches one process.
#[derive(Debug)]
pub struct ProcessWatch {
    /// Readable once the process has ended; `None` when it had ended before the watch started.
    pidfd: Option<OwnedFd>,
}

impl ProcessWatch {
    /// Starts to watch a process.
    ///
    /// A process that has already ended, or whose pid was reused, counts as ended.
    ///
    /// # Errors
    ///
    /// Fails when the kernel provides no pidfd, or when `/proc` cannot be read.
    pub fn over(process: ProcessKey) -> io::Result<Self> {
        let Some(pid) = Pid::from_raw(process.pid) else { return Ok(Self { pidfd: None }) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(Self { pidfd: None }),
            Err(error) => return Err(error.into()),
        };
        // The start time proves the identity of the process only after the pidfd is open.
        if !process.is_alive()? {
            return Ok(Self { pidfd: None });
        }
        Ok(Self { pidfd: Some(pidfd) })
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    ///
    /// Fails when the wait itself fails.
    pub async fn ended(self) -> io::Result<()> {
        let Some(pidfd) = self.pidfd else { return Ok(()) };
        let (sender, receiver) = oneshot::channel();
        // This needs its own thread: a blocking thread of the runtime would delay its shutdown.
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
            // The receiver is gone if the wait was dropped.
            let _ = sender.send(wait_until_readable(&pidfd));
        })?;
        receiver.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
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

/// What became of the resources of a dead owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Reclaimed {
    /// Another round would achieve nothing more.
    Done,
    /// There is space again, and the ledger has to be opened again to record what was done.
    ReopenLedger,
}

/// Releases what a dead owner left, and continues while creates may still complete, or while the
/// disk is too full to record the releases.
///
/// # Errors
///
/// Fails when the ledger cannot be used.
pub async fn reclaim(
    reconciler: &Reconciler,
    dead: &Owner,
    mut report: impl FnMut(&Status),
) -> Result<Reclaimed, LedgerError> {
    let mut status = or_incomplete(reconciler.inherit(dead).await)?;
    report(&status);
    // A round that a full disk ended has examined nothing, and is not the last one.
    if status.examined == 0 && status.audit_incomplete == 0 && status.is_final() {
        return Ok(Reclaimed::Done);
    }
    loop {
        status = search_on(reconciler, dead, status, &mut report).await?;
        // A late create may have restored something that was released before it, as a container
        // does with its volume. Only a full round over the providers detects that.
        let round = or_incomplete(reconciler.round().await)?;
        report(&round);
        if status.audit_incomplete + round.audit_incomplete == 0 {
            return Ok(Reclaimed::Done);
        }
        // Whatever fills the disk may leave a little space, and take it again.
        tokio::time::sleep(FULL_DISK_PAUSE).await;
        reconciler.wait_for_space().await;
        reconciler.write_deferred_tries().await;
        if reconciler.needs_reopening() {
            return Ok(Reclaimed::ReopenLedger);
        }
        status = or_incomplete(reconciler.continue_inheriting(dead).await)?;
        report(&status);
    }
}

/// Repeats the search until another round would achieve nothing more.
async fn search_on(
    reconciler: &Reconciler,
    dead: &Owner,
    mut status: Status,
    report: &mut impl FnMut(&Status),
) -> Result<Status, LedgerError> {
    let (mut pause, started) = (FIRST_SEARCH, Instant::now());
    while !status.is_final() {
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_SEARCH);
        status = or_incomplete(reconciler.continue_inheriting(dead).await)?;
        report(&status);
        // Once nothing can complete late, only space helps on a full disk. The next reconcile
        // handles an unreachable engine, or resources that another client keeps in use.
        let is_last = pause == LONGEST_SEARCH || status.audit_incomplete > 0;
        if status.open_intents == 0 && is_last {
            break;
        }
        // A window measured by a clock that was set back would not end.
        if started.elapsed() > reconciler.intent_window() + LONGEST_SEARCH {
            warn!(
                open_intents = status.open_intents,
                "late creates are left to the next reconcile"
            );
            break;
        }
    }
    Ok(status)
}

/// Counts a round that a full disk ended as one that is not on record.
fn or_incomplete(round: Result<Status, LedgerError>) -> Result<Status, LedgerError> {
    match round {
        Err(error) if error.is_disk_full() => {
            warn!(%error, "the disk is full");
            Ok(Status { audit_incomplete: 1, ..Status::default() })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_killed_process_is_noticed_at_once() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessKey::of(child.id().cast_signed()).unwrap();
        let watch = ProcessWatch::over(key).unwrap();
        child.kill().unwrap();
        // The zombie is not reaped yet, and the watch must not wait for that.
        tokio::time::timeout(Duration::from_secs(5), watch.ended()).await.unwrap().unwrap();
        child.wait().unwrap();
        let late = ProcessWatch::over(key).unwrap();
        tokio::time::timeout(Duration::from_secs(5), late.ended()).await.unwrap().unwrap();
    }
}
