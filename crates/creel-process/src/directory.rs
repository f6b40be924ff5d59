//! Removes a directory without ever leaving it, and never removes another one.
//!
//! The directory is opened, compared with the recorded identity, renamed to a private name, and
//! opened and compared again there. From then on everything happens below that one handle, whatever
//! happens to the names. Links are not followed, and mounts are not entered. Subdirectories are
//! moved to the top before they are emptied, so a tree of any depth takes a few descriptors and no
//! recursion.
//!
//! One race remains. The last step removes an empty directory by its private name, right after that
//! name was compared once more. A process that exchanges the directory in between loses an empty
//! directory, never a directory's contents.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use creel_model::id::ResourceId;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, fstat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::inode::Inode;
use super::sidecar::SidecarDirectory;
use super::{beneath, disk, mounts};

/// Maximum number of rounds that find entries but no new subdirectory.
const MOST_IDLE_ROUNDS: u32 = 100;

/// Why a directory is kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryRefusal {
    /// Another file system is mounted in it.
    #[error("something is mounted at {0}")]
    Mounted(PathBuf),
    /// It is not a directory any more.
    #[error("{0} is something else than a directory now; it is kept")]
    NotADirectory(PathBuf),
    /// It is a directory that is not ours.
    #[error("{0} is not the directory that was made under this name; it is kept")]
    Foreign(PathBuf),
    /// The system refused a step.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for DirectoryRefusal {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Removes the directory of a resource, and what an earlier attempt left of it.
///
/// Only a directory with the recorded identity is emptied. Without an identity, only an empty
/// directory under the private name of an unfinished create is removed.
pub(super) fn remove(
    records: &SidecarDirectory,
    resource: &ResourceId,
    expected: Option<&Inode>,
) -> Result<(), DirectoryRefusal> {
    let root = match openat(CWD, records.root(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let (path, private) = (records.directory(resource), records.removing_directory(resource));
    remove_unfinished(&root, &records.making_directory(resource), expected)?;
    if let Some(handle) = find(&root, &private)? {
        empty_and_remove(&root, &private, handle, expected)?;
    }
    let Some(handle) = find(&root, &path)? else { return Ok(()) };
    compare(&handle, &path, expected)?;
    clear_mounts(&path)?;
    drop(handle);
    rename(&root, &path, &private)?;
    let Some(handle) = find(&root, &private)? else { return Ok(()) };
    if let Err(refusal) = compare(&handle, &private, expected) {
        // It was exchanged in the moment before the rename, so the other directory gets its name
        // back.
        rename(&root, &private, &path)?;
        return Err(refusal);
    }
    empty_and_remove(&root, &private, handle, expected)
}

/// Removes a directory that was never finished: by its identity, or else only while it is empty.
fn remove_unfinished(
    root: &OwnedFd,
    path: &Path,
    expected: Option<&Inode>,
) -> Result<(), DirectoryRefusal> {
    let Some(handle) = find(root, path)? else { return Ok(()) };
    if compare(&handle, path, expected).is_ok() {
        return empty_and_remove(root, path, handle, expected);
    }
    match unlinkat(root, name_of(path)?, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(DirectoryRefusal::Foreign(path.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Opens one of the names of a resource; `None` when it does not exist.
fn find(root: &OwnedFd, path: &Path) -> Result<Option<OwnedFd>, DirectoryRefusal> {
    match beneath::open_directory(root, name_of(path)?) {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(DirectoryRefusal::NotADirectory(path.to_owned())),
        Err(Errno::XDEV) => Err(DirectoryRefusal::Mounted(path.to_owned())),
        Err(error) => Err(error.into()),
    }
}

fn name_of(path: &Path) -> Result<&std::ffi::OsStr, DirectoryRefusal> {
    path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput).into())
}

fn compare(
    handle: &OwnedFd,
    path: &Path,
    expected: Option<&Inode>,
) -> Result<(), DirectoryRefusal> {
    let seen = Inode::of(handle)?;
    if expected.is_some_and(|ours| ours.is_distinctive() && ours.matches(&seen)) {
        return Ok(());
    }
    Err(DirectoryRefusal::Foreign(path.to_owned()))
}

/// Renames without ever replacing an existing target.
fn rename(root: &OwnedFd, from: &Path, to: &Path) -> Result<(), DirectoryRefusal> {
    match beneath::rename_into_free(root, name_of(from)?, root, name_of(to)?) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::EXIST | Errno::NOTEMPTY) => Err(DirectoryRefusal::Foreign(to.to_owned())),
        Err(Errno::BUSY) => Err(DirectoryRefusal::Mounted(from.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Unmounts the directory's own disk, and refuses any other mount in it, before anything in it is
/// touched.
fn clear_mounts(path: &Path) -> Result<(), DirectoryRefusal> {
    disk::unmount_own(path)?;
    match mounts::read()?.into_iter().find(|mount| mount.path.starts_with(path)) {
        Some(mount) => Err(DirectoryRefusal::Mounted(mount.path)),
        None => Ok(()),
    }
}

/// Empties a directory under its private name, and removes it while it is still ours.
fn empty_and_remove(
    root: &OwnedFd,
    path: &Path,
    handle: OwnedFd,
    expected: Option<&Inode>,
) -> Result<(), DirectoryRefusal> {
    compare(&handle, path, expected)?;
    clear_mounts(path)?;
    let top = Top { handle: read_handle(&handle)?, path, name_count: 0, moved_count: 0 };
    top.empty()?;
    match find(root, path)? {
        None => return Ok(()),
        Some(found) => compare(&found, path, expected)?,
    }
    match unlinkat(root, name_of(path)?, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns a handle for reading a directory, after making it accessible if necessary.
fn read_handle(bare: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(fstat(bare)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        chmod(format!("/proc/self/fd/{}", bare.as_raw_fd()), mode | Mode::RWXU)?;
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    openat(bare, ".", flags, Mode::empty())
}

/// The directory that is being emptied.
struct Top<'a> {
    handle: OwnedFd,
    path: &'a Path,
    /// The number of names that were tried for moved subdirectories.
    name_count: u64,
    /// The number of subdirectories that were moved to the top.
    moved_count: u64,
}

impl Top<'_> {
    /// Removes everything in it: files at once, directories after they are flattened.
    ///
    /// An entry that cannot be removed does not keep the others: they may contain secrets. The
    /// first refusal is returned once nothing else is left to remove.
    fn empty(mut self) -> Result<(), DirectoryRefusal> {
        let (mut idle_rounds, mut moved_before) = (0, 0);
        while idle_rounds < MOST_IDLE_ROUNDS {
            let entries = entries_of(&self.handle)?;
            if entries.is_empty() {
                return Ok(());
            }
            idle_rounds = if self.moved_count > moved_before { 0 } else { idle_rounds + 1 };
            moved_before = self.moved_count;
            let refused = first_refusal(&entries, |name| self.remove_entry(name));
            if refused.is_err() && self.moved_count == moved_before {
                return refused;
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "something keeps writing into it").into())
    }

    /// Removes a file, or empties a subdirectory.
    fn remove_entry(&mut self, name: &CStr) -> Result<(), DirectoryRefusal> {
        match self.open(&self.handle, name)? {
            Some(directory) => self.flatten(name, &read_handle(&directory)?),
            None => self.unlink(&self.handle, name, AtFlags::empty()),
        }
    }

    /// Empties one subdirectory by moving its own subdirectories up, then removes it.
    fn flatten(&mut self, name: &CStr, directory: &OwnedFd) -> Result<(), DirectoryRefusal> {
        first_refusal(&entries_of(directory)?, |inner| {
            match self.open(directory, inner)? {
                Some(found) => {
                    // A directory can change its parent only while it is writable.
                    drop(read_handle(&found)?);
                    self.move_up(directory, inner)
                }
                None => self.unlink(directory, inner, AtFlags::empty()),
            }
        })?;
        self.unlink(&self.handle, name, AtFlags::REMOVEDIR)
    }

    /// Opens an entry if it is a directory; refuses one that is a mount point.
    fn open(&self, parent: &OwnedFd, name: &CStr) -> Result<Option<OwnedFd>, DirectoryRefusal> {
        let is_directory = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => FileType::from_raw_mode(found.st_mode) == FileType::Directory,
            Err(Errno::NOENT) => false,
            Err(error) => return Err(error.into()),
        };
        if !is_directory {
            return Ok(None);
        }
        match beneath::open_directory(parent, name) {
            Ok(handle) => Ok(Some(handle)),
            // It was exchanged for a link or a file, which is removed as such.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => Err(self.mounted(name)),
            Err(error) => Err(error.into()),
        }
    }

    fn mounted(&self, name: &CStr) -> DirectoryRefusal {
        DirectoryRefusal::Mounted(self.path.join(OsString::from_vec(name.to_bytes().to_vec())))
    }

    fn unlink(
        &self,
        parent: &OwnedFd,
        name: &CStr,
        flags: AtFlags,
    ) -> Result<(), DirectoryRefusal> {
        match unlinkat(parent, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Err(self.mounted(name)),
            // The entry has changed since it was listed: the next round checks it again.
            Err(Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &CStr) -> Result<(), DirectoryRefusal> {
        loop {
            self.name_count += 1;
            let target = format!(".creel-moved-{}", self.name_count);
            match beneath::rename_into_free(directory, name, &self.handle, target.as_str()) {
                // An entry that was here before has this name.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Ok(()) => {
                    self.moved_count += 1;
                    return Ok(());
                }
                Err(Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) => return Err(self.mounted(name)),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Removes each entry, and returns the first refusal when all were tried.
fn first_refusal(
    entries: &[CString],
    mut remove: impl FnMut(&CStr) -> Result<(), DirectoryRefusal>,
) -> Result<(), DirectoryRefusal> {
    let mut first = Ok(());
    for name in entries {
        first = first.and(remove(name));
    }
    first
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
