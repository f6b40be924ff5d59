//! A socket in another one's place, for one process tree only.
//!
//! Programs with a hard-coded socket path ignore the environment. A tree in a mount namespace of
//! its own finds another socket at the same path; no other process is affected. Root needs nothing
//! more for it. An ordinary user gets a user namespace around it, in which programs that change
//! their user fail.

use std::fs;
use std::io;
use std::path::PathBuf;

use creel_model::os::unshare;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::geteuid;
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use super::disk;
use super::namespace::unshare_as_oneself;

/// A socket, and the path where a tree finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketCover {
    /// The socket to mount.
    pub socket: PathBuf,
    /// The path where it is mounted; it must exist.
    pub place: PathBuf,
}

impl SocketCover {
    /// Mounts the socket, for this process and those it starts from here on.
    ///
    /// The process must not have started a thread before.
    pub(super) fn put_on(&self) -> io::Result<()> {
        // If the path is a link, the mount goes on its target.
        let place = fs::canonicalize(&self.place).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.place.display()))
        })?;
        enter_namespace()?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        disk::leave_others(None)?;
        mount_bind(&self.socket, &place)?;
        Ok(())
    }
}

fn enter_namespace() -> io::Result<()> {
    // Root may lack the permission, for example in a container; then it does the same as other
    // users.
    if geteuid().is_root() && unshare(UnshareFlags::NEWNS).is_ok() {
        return Ok(());
    }
    unshare_as_oneself(UnshareFlags::NEWNS)
}
