//! The Daytona provider against the local server, faults included.

mod access;
mod bench;
mod create;
mod limits;
mod list;
mod release;
