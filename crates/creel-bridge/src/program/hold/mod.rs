//! `hold`: the holder, first process of a container or root of a process tree.
//!
//! It reaps whatever becomes its child, and ends with all below it when it is asked
//! to or when the lease was not renewed. In a container it is the first process, so
//! its end is the container's. With a socket it starts an `exec` per connection,
//! which lives no longer than the connection does.
//!
//! Asked to end, it asks everybody else first and waits a while: bridges close
//! their runtime then. When the lease ran out nobody is asked.

mod listener;

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{getpid, set_child_subreaper};

use super::arguments::Arguments;
use super::failure::Failure;
use super::lease::Lease;
use super::lookout::wait_for;
use super::processes::{self, Cleared, Scope};
use super::signals::Signals;
use listener::Listener;

/// How long those who are asked to end may take.
const GRACE: Duration = Duration::from_secs(5);
/// How long the killed may take to die before they are killed again.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
/// The exit code that says that the lease ran out.
const LEASE_RAN_OUT: u8 = 3;

/// Holds until it is asked to end or the lease runs out.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let lease_file = arguments.needed_path("lease-file")?;
    let mut lease = Lease::start(lease_file, arguments.needed_duration("lease-ms")?);
    set_child_subreaper(Some(getpid())).map_err(Failure::of("adopt orphans"))?;
    let mut signals = Signals::catch()?;
    let listener = arguments.path("socket").map(|path| Listener::bind(&path)).transpose()?;
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
            listener.take();
        }
    }
}

/// Asks everybody to end, and kills those who have not when the grace is over.
fn end_with_grace(signals: &mut Signals) {
    let deadline = Instant::now() + GRACE;
    let mut left = processes::ask_to_end(Scope::Everything);
    while left > 0 && Instant::now() < deadline {
        let look_again = Instant::now() + Duration::from_millis(50);
        let watched = [(signals.as_fd(), PollFlags::IN)];
        wait_for(&watched, Some(look_again));
        signals.drain();
        processes::reap(|_, _| {});
        left = processes::count(Scope::Everything);
    }
    end_by_force();
}

/// Kills everybody, however long it takes: while something is left, somebody must answer for it.
/// The first process of a namespace may go at once, because the kernel ends the rest with it.
fn end_by_force() {
    let is_first = getpid().as_raw_pid() == 1;
    while let Cleared::Left(_) = processes::end(Scope::Everything, DEATH_PATIENCE, |_, _| {}) {
        if is_first {
            return;
        }
    }
}
