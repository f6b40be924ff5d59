//! A socket in another's place, for one process tree only.
//!
//! Programs with a hard-coded socket do not ask the environment. In a mount
//! namespace of its own a tree finds another socket at the same path; nobody
//! else notices. Root needs nothing more for it. An ordinary user gets a user
//! namespace around it, in which programs that change their user do not work.

use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::geteuid;
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use crate::os::unshare;

use super::disk;
use super::namespace::unshare_as_oneself;

/// What a tree finds where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cover {
    /// The socket that is found.
    pub socket: PathBuf,
    /// Where; it must exist.
    pub place: PathBuf,
}

impl Cover {
    /// Puts the socket in its place, for this process and those it starts from here on.
    ///
    /// The process must not have started a thread before.
    pub(super) fn put_on(&self) -> io::Result<()> {
        // Whatever leads there, the mount is on what it leads to.
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
    // Root may lack the right, in a container for one; then it is as good as anybody else.
    if geteuid().is_root() && unshare(UnshareFlags::NEWNS).is_ok() {
        return Ok(());
    }
    unshare_as_oneself(UnshareFlags::NEWNS)
}
