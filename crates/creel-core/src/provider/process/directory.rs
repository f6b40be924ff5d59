//! Removing a directory without ever leaving it.
//!
//! The directory is renamed first, so that nobody mistakes a half-removed one
//! for a whole one. Nothing is followed: every step is relative to an open
//! directory and refuses symbolic links. Sub-directories are moved to the top
//! before they are emptied, so a tree of any depth takes two descriptors and
//! no recursion.

use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::id::ResourceId;

use super::sidecar::Shelf;

/// Why a directory stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// Another file system is mounted in it.
    #[error("something is mounted at {0}")]
    Mounted(PathBuf),
    /// It is not what was made.
    #[error("something else than a directory has the name")]
    NotADirectory,
    /// The system did not let us.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Removes the directory of a resource, and what an earlier try left of it.
pub(super) fn remove(shelf: &Shelf, resource: &ResourceId) -> Result<(), Refusal> {
    let path = shelf.directory(resource);
    let removing = shelf.removing_directory(resource);
    for one in [&path, &removing] {
        check(one)?;
    }
    remove_renamed(&removing)?;
    match fs::rename(&path, &removing) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    remove_renamed(&removing)
}

/// Refuses what is no directory, or has something mounted in it.
fn check(path: &Path) -> Result<(), Refusal> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_dir() => return Err(Refusal::NotADirectory),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let mounts = fs::read("/proc/self/mountinfo")?;
    match mount_points(&mounts).find(|point| point.starts_with(path)) {
        Some(point) => Err(Refusal::Mounted(point)),
        None => Ok(()),
    }
}

fn mount_points(mounts: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = mounts.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(unescape(line.split(|byte| *byte == b' ').nth(4)?)))
}

/// Undoes the octal escapes of `mountinfo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let escaped = (*first == b'\\').then(|| after.get(..3)).flatten();
        let code = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Empties and removes a directory that has its last name already.
fn remove_renamed(path: &Path) -> Result<(), Refusal> {
    let top = match open(CWD, path) {
        Ok(top) => Top { device: fstat(&top)?.st_dev, handle: top, path, moved_count: 0 },
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    top.empty()?;
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Opens a directory itself, made accessible if it is not, never through a link.
fn open(
    parent: impl std::os::fd::AsFd + Copy,
    name: impl rustix::path::Arg + Copy,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A bare handle first: it needs no permission, and what it names cannot be exchanged.
    let bare = openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    let mode = Mode::from_raw_mode(fstat(&bare)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        chmod(format!("/proc/self/fd/{}", bare.as_raw_fd()), mode | Mode::RWXU)?;
    }
    openat(&bare, ".", flags | OFlags::RDONLY, Mode::empty())
}

/// The directory that is being emptied.
struct Top<'a> {
    handle: OwnedFd,
    path: &'a Path,
    device: u64,
    moved_count: u64,
}

impl Top<'_> {
    /// Removes everything in it: files at once, directories after they were flattened.
    fn empty(mut self) -> Result<(), Refusal> {
        loop {
            let entries = entries_of(&self.handle)?;
            if entries.is_empty() {
                return Ok(());
            }
            for name in &entries {
                if is_directory(&self.handle, name)? {
                    self.flatten(name)?;
                } else {
                    unlink(&self.handle, name, AtFlags::empty())?;
                }
            }
        }
    }

    /// Empties one sub-directory by moving its own sub-directories up, then removes it.
    fn flatten(&mut self, name: &CStr) -> Result<(), Refusal> {
        let directory = open(&self.handle, name)?;
        if fstat(&directory)?.st_dev != self.device {
            let name = OsString::from_vec(name.to_bytes().to_vec());
            return Err(Refusal::Mounted(self.path.join(name)));
        }
        for inner in entries_of(&directory)? {
            if is_directory(&directory, &inner)? {
                // A directory changes its parent only while it can be written to.
                drop(open(&directory, inner.as_c_str())?);
                self.move_up(&directory, &inner)?;
            } else {
                unlink(&directory, &inner, AtFlags::empty())?;
            }
        }
        unlink(&self.handle, name, AtFlags::REMOVEDIR)?;
        Ok(())
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        loop {
            self.moved_count += 1;
            let target = format!(".creel-moved-{}", self.moved_count);
            match renameat(directory, name, &self.handle, &target) {
                // The name is taken by something that was here before.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                other => return other,
            }
        }
    }
}

fn entries_of(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_directory(parent: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

fn unlink(parent: &OwnedFd, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    match unlinkat(parent, name, flags) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let mounts = b"1 2 0:1 / /a\\040b rw - tmpfs x rw\n3 4 0:2 / /c\\134d rw - tmpfs y rw\n";
        let points: Vec<PathBuf> = mount_points(mounts).collect();
        assert_eq!(points, [PathBuf::from("/a b"), PathBuf::from("/c\\d")]);
    }
}
