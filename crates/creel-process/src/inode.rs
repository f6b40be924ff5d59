//! Identity of file system objects.
//!
//! A name says where an object is, not which one it is: a directory that is removed and made again
//! under the same name is another object. Device, inode and birth time together distinguish the
//! two, even where the file system reuses an inode number. A file system that records no birth time
//! usually has file handles, which do the same. Where it has neither, nothing proves that an inode
//! is the recorded one. Birth times are as fine as the kernel's
//! tick. Only a replacement with the same inode number, made within one tick (at most 10 ms) of the
//! first one's creation, is indistinguishable.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use creel_model::provider::Identity;
use jiff::Timestamp;
use rustix::fs::{AtFlags, StatxFlags, fstat, major, makedev, minor, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The identity of one directory, file or control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inode {
    /// The device of the file system; zero where the number is not stable.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
    /// When it was created, in nanoseconds since the epoch, where the file system records it.
    #[serde(default)]
    pub born_ns: Option<i64>,
    /// Its file handle, where the file system records no birth time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
}

impl Inode {
    /// Returns the identity of an open handle.
    pub(super) fn of(handle: impl AsFd) -> Result<Self, Errno> {
        let mask = StatxFlags::INO | StatxFlags::BTIME;
        match statx(&handle, c"", AtFlags::EMPTY_PATH, mask) {
            Ok(found) => {
                let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
                let born = found.stx_btime;
                let nanoseconds = born.tv_sec.checked_mul(1_000_000_000);
                let born_ns = nanoseconds.and_then(|ns| ns.checked_add(i64::from(born.tv_nsec)));
                let born_ns = born_ns.filter(|_| has_birth);
                let device = makedev(found.stx_dev_major, found.stx_dev_minor);
                // A file system without a device (btrfs, overlayfs) gets another number at every
                // mount. There the birth time alone has to distinguish inodes.
                let is_synthetic = found.stx_dev_major == 0 && born_ns.is_some();
                let device = if is_synthetic { 0 } else { device };
                let handle = if born_ns.is_none() { handle_of(&handle)? } else { None };
                Ok(Self { device, inode: found.stx_ino, born_ns, handle })
            }
            // Kernels before 4.11, and system call filters that do not know `statx`.
            Err(Errno::NOSYS | Errno::PERM) => {
                let (found, file_handle) = (fstat(&handle)?, handle_of(&handle)?);
                let (device, inode) = (found.st_dev, found.st_ino);
                Ok(Self { device, inode, born_ns: None, handle: file_handle })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether an observed inode has everything that is recorded here.
    ///
    /// An older version recorded no handle. Control groups need none: the kernel does not reuse
    /// their numbers.
    pub(super) fn matches(&self, seen: &Self) -> bool {
        let is_same =
            (self.device, self.inode, self.born_ns) == (seen.device, seen.inode, seen.born_ns);
        is_same && (self.handle.is_none() || self.handle == seen.handle)
    }

    /// Returns whether an inode that matches this one is the same, and no replacement that was given
    /// its number.
    pub(super) fn is_distinctive(&self) -> bool {
        self.born_ns.is_some() || self.handle.is_some()
    }

    /// Returns the identity of the object at a path, without following a link; `None` if there is
    /// none.
    pub(super) fn at(path: &std::path::Path) -> io::Result<Option<Self>> {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(CWD, path, flags, Mode::empty()) {
            Ok(handle) => Ok(Some(Self::of(handle)?)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<Inode> for Identity {
    fn from(inode: Inode) -> Self {
        let born_at = inode.born_ns.map(i128::from).map(Timestamp::from_nanosecond);
        Self::Directory {
            device: inode.device,
            inode: inode.inode,
            born_at: born_at.and_then(Result::ok),
            handle: inode.handle,
        }
    }
}

impl Inode {
    /// Returns the inode of a directory identity.
    pub(super) fn of_identity(identity: &Identity) -> Option<Self> {
        let Identity::Directory { device, inode, born_at, handle } = identity else { return None };
        let born_ns = born_at.map(|at| at.as_nanosecond()).and_then(|ns| i64::try_from(ns).ok());
        Some(Self { device: *device, inode: *inode, born_ns, handle: handle.clone() })
    }
}

/// Returns the file handle of an open file, if the file system has handles.
fn handle_of(file: impl AsFd) -> Result<Option<String>, Errno> {
    let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    creel_model::os::file_handle(file).map_err(failed)
}

impl fmt::Display for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", major(self.device), minor(self.device), self.inode)?;
        match (self.born_ns, &self.handle) {
            (Some(born_ns), _) => write!(f, ":{born_ns}"),
            (None, Some(handle)) => write!(f, ":{handle}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// File systems record birth times in kernel ticks of at most 10 ms.
    const TWO_TICKS: std::time::Duration = std::time::Duration::from_millis(20);

    #[test]
    fn a_recreated_directory_is_another_one() {
        let home = tempfile::tempdir().expect("a directory can be made");
        let path = home.path().join("one");
        let read = || Inode::at(&path).expect("readable");
        assert_eq!(read(), None);
        fs::create_dir(&path).expect("the name is free");
        let first = read().expect("it was made");
        assert_eq!(read(), Some(first.clone()));
        std::thread::sleep(TWO_TICKS);
        fs::remove_dir(&path).expect("it is empty");
        fs::create_dir(&path).expect("the name is free");
        assert_ne!(read().expect("it was made"), first);
    }

    #[test]
    fn it_is_the_same_after_it_was_on_the_ledger() {
        let home = tempfile::tempdir().expect("a directory can be made");
        let inode = Inode::at(home.path()).expect("readable").expect("it was made");
        assert_eq!(Inode::of_identity(&inode.clone().into()), Some(inode));
        assert_eq!(Inode::of_identity(&Identity::Traces), None);
    }

    #[test]
    fn a_rename_does_not_change_what_it_is() {
        let home = tempfile::tempdir().expect("a directory can be made");
        let (before, after) = (home.path().join("before"), home.path().join("after"));
        fs::create_dir(&before).expect("the name is free");
        let first = Inode::at(&before).expect("readable");
        fs::rename(&before, &after).expect("it is ours");
        assert_eq!(Inode::at(&after).expect("readable"), first);
    }
}
