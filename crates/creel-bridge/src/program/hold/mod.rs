//! `hold`: the holder, first process of a container or root of a process tree.
//!
//! It reaps every process that becomes its child. When it is asked to end, or the lease is not
//! renewed, it ends everything below it and itself. In a container it is the first process, so the
//! container ends with it. With a socket it starts one `exec` per connection, which lives no longer
//! than the connection.
//!
//! When it is asked to end, it first asks all other processes and waits for a grace period, in
//! which bridges close their runtime. When the lease has expired, it kills them without asking.

mod listener;

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{getpid, set_child_subreaper};

use super::arguments::Arguments;
use super::error::BridgeError;
use super::lease::FileLease;
use super::poll::wait_for;
use super::processes::{self, Cleared, ProcessScope};
use super::signals::Signals;
use listener::ExecListener;

/// How long processes that are asked to end may take.
const GRACE: Duration = Duration::from_secs(5);
/// How long killed processes may take to die before they are killed again.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// The exit code for an expired lease.
const LEASE_RAN_OUT: u8 = 3;

/// Runs until it is asked to end or the lease expires.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let lease_file = arguments.needed_path("lease-file")?;
    let mut lease = FileLease::start(lease_file, arguments.needed_duration("lease-ms")?);
    set_child_subreaper(Some(getpid())).map_err(BridgeError::of("adopt orphans"))?;
    let mut signals = Signals::catch()?;
    let listener = arguments.path("socket").map(|path| ExecListener::bind(&path)).transpose()?;
    loop {
        processes::reap(|_, _| {});
        if signals.asked_to_end() {
            end_with_grace(&mut signals);
            return Ok(ExitCode::SUCCESS);
        }
        if lease.has_run_out() {
            end_by_force();
            return Ok(ExitCode::from(LEASE_RAN_OUT));
        }
        let mut watched = vec![(signals.as_fd(), PollFlags::IN)];
        watched.extend(listener.as_ref().map(|listener| (listener.as_fd(), PollFlags::IN)));
        let until = Instant::now() + lease.period();
        let ready = wait_for(&watched, Some(until));
        signals.drain();
        if let Some(listener) = &listener
            && !ready[1].is_empty()
        {
            listener.accept_pending();
        }
    }
}

/// Asks all processes to end, and kills those that remain after the grace period.
fn end_with_grace(signals: &mut Signals) {
    let deadline = Instant::now() + GRACE;
    let mut left = processes::ask_to_end(ProcessScope::Everything);
    while left > 0 && Instant::now() < deadline {
        let check_again_at = Instant::now() + Duration::from_millis(50);
        let watched = [(signals.as_fd(), PollFlags::IN)];
        wait_for(&watched, Some(check_again_at));
        signals.drain();
        processes::reap(|_, _| {});
        left = processes::count(ProcessScope::Everything);
    }
    end_by_force();
}

/// Kills all processes, however long it takes: while one is left, its holder must stay. The first
/// process of a namespace may exit at once, because the kernel then kills the rest.
fn end_by_force() {
    let is_first = getpid().as_raw_pid() == 1;
    while let Cleared::Left(_) = processes::end(ProcessScope::Everything, DEATH_PATIENCE, |_, _| {})
    {
        if is_first {
            return;
        }
    }
}
