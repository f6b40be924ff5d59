//! The one integration binary: the real `creel` against real parts.

mod cli;
mod crash;
mod faults;
mod late;
mod recovery;
mod scripted;
mod support;
mod sweeps;
mod watchdog;
