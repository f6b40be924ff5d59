//! Opens a directory below another one, and never anything else.
//!
//! `openat2` lets the kernel reject links, other mounts and every escape in one step. Where it is
//! missing (before Linux 5.6, or behind a system call filter), the same is checked after the fact:
//! the handle is opened without following a link, and its mount is compared with that of its
//! parent.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, openat, openat2, renameat, renameat_with,
    statat,
};
use rustix::io::Errno;

/// How often to repeat a resolution that a concurrent rename disturbed.
const TRIES: u32 = 16;

/// Opens a directory by its name in its parent.
///
/// The handle is an `O_PATH` handle. It refers to the directory, needs no permission on it, and
/// stays valid whatever happens to the name.
///
/// # Errors
///
/// `XDEV` when something is mounted there, `LOOP` or `NOTDIR` when it is not a directory.
pub(super) fn open_directory(
    parent: impl AsFd,
    name: impl rustix::path::Arg + Copy,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_XDEV
        | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(&parent, name, flags(), Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::PERM) => break,
            other => return other,
        }
    }
    open_and_compare(parent, name)
}

fn flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Does the same with system calls that every kernel has.
fn open_and_compare(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let handle = openat(&parent, name, flags(), Mode::empty())?;
    let mount = |handle: &dyn AsFd| mount_of(handle).map_err(|_| Errno::XDEV);
    // A handle that cannot be compared counts as another mount.
    if mount(&parent)? == mount(&handle)? { Ok(handle) } else { Err(Errno::XDEV) }
}

/// Renames without ever replacing an existing target.
///
/// # Errors
///
/// `EXIST` when the target exists, otherwise the error of the system.
pub(super) fn rename_into_free(
    from: impl AsFd,
    name: impl rustix::path::Arg + Copy,
    to: impl AsFd,
    target: impl rustix::path::Arg + Copy,
) -> Result<(), Errno> {
    match renameat_with(&from, name, &to, target, RenameFlags::NOREPLACE) {
        // Some file systems support only the plain form.
        Err(Errno::INVAL | Errno::NOSYS) => match statat(&to, target, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => renameat(&from, name, &to, target),
            Ok(_) => Err(Errno::EXIST),
            Err(error) => Err(error),
        },
        other => other,
    }
}

/// Returns the id of the mount that a handle is on.
fn mount_of(handle: &dyn AsFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_fd().as_raw_fd()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|id| id.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn both_implementations_open_directories_and_refuse_links_and_mounts() {
        let home = tempfile::tempdir().expect("a directory can be made");
        fs::create_dir(home.path().join("inner")).expect("the name is free");
        fs::write(home.path().join("file"), "text").expect("the name is free");
        symlink("inner", home.path().join("link")).expect("links can be made");
        let parent = openat(CWD, home.path(), flags(), Mode::empty()).expect("it exists");
        let root = openat(CWD, "/", flags(), Mode::empty()).expect("it exists");
        type Opener = fn(&OwnedFd, &str) -> Result<OwnedFd, Errno>;
        let ways: [Opener; 2] = [|p, n| open_directory(p, n), |p, n| open_and_compare(p, n)];
        for open in ways {
            assert!(open(&parent, "inner").is_ok());
            let link = open(&parent, "link").expect_err("it is a link");
            assert!(matches!(link, Errno::LOOP | Errno::NOTDIR), "{link}");
            assert_eq!(open(&parent, "file").expect_err("it is a file"), Errno::NOTDIR);
            assert_eq!(open(&parent, "none").expect_err("it is absent"), Errno::NOENT);
            assert_eq!(open(&root, "proc").expect_err("procfs is mounted there"), Errno::XDEV);
        }
    }
}
