//! The one integration binary: the real `creel` against real parts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod cli;
mod crash;
mod daytona;
mod faults;
mod full_disk;
mod full_disk_remote;
mod guard;
mod hostile;
mod hostile_rounds;
mod inside;
mod late;
mod ownership;
mod quarantined;
mod recovery;
mod runs;
mod sandboxes;
mod scripted;
mod small_disk;
mod support;
mod sweeps;
mod toolbox;
mod torture;
mod vanished;
mod watchdog;
mod windows;
