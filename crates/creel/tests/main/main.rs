//! The one integration binary: the real `creel` against real parts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod cli;
mod crash;
mod daytona;
mod engine_faults;
mod full_disk;
mod full_disk_endings;
mod full_disk_remote;
mod guard;
mod hostile;
mod hostile_rounds;
mod intent_windows;
mod late_creates;
mod lost_ledger;
mod ownership;
mod quarantined;
mod recovery;
mod runs;
mod sandbox;
mod sandbox_crashes;
mod scripted_engine;
mod small_disk;
mod support;
mod sweeps;
mod toolbox;
mod torture;
mod watchdog;
