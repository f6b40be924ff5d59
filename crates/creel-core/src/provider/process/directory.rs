//! Removing a directory without ever leaving it, and never another one.
//!
//! The directory is opened, compared with the identity on record, renamed to a
//! private name, and opened and compared again there: from then on everything
//! happens below that one handle, whatever becomes of the names. Nothing is
//! followed, and nothing that is mounted is entered. Sub-directories are moved
//! to the top before they are emptied, so a tree of any depth takes a few
//! descriptors and no recursion.
//!
//! One window remains. The last step removes an empty directory by its private
//! name, right after that name was compared once more; whoever exchanges it in
//! between loses an empty directory, never what is in one.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, fstat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::id::ResourceId;

use super::inode::Inode;
use super::sidecar::Shelf;
use super::{beneath, disk, mounts};

/// How many rounds may pass that find something and no new sub-directory.
const MOST_IDLE_ROUNDS: u32 = 100;

/// Why a directory stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// Another file system is mounted in it.
    #[error("something is mounted at {0}")]
    Mounted(PathBuf),
    /// It is not what was made.
    #[error("{0} is something else than a directory now; it is kept")]
    NotADirectory(PathBuf),
    /// It is a directory that somebody else made.
    #[error("{0} is not the directory that was made under this name; it is kept")]
    Foreign(PathBuf),
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
///
/// Only what has the identity on record is emptied. Without one, only an empty directory goes
/// that has the private name of one in the making.
pub(super) fn remove(
    shelf: &Shelf,
    resource: &ResourceId,
    expected: Option<&Inode>,
) -> Result<(), Refusal> {
    let root = match openat(CWD, shelf.root(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let (path, private) = (shelf.directory(resource), shelf.removing_directory(resource));
    remove_unfinished(&root, &shelf.making_directory(resource), expected)?;
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
        // Somebody exchanged it in the moment before the rename: it gets its name back.
        rename(&root, &private, &path)?;
        return Err(refusal);
    }
    empty_and_remove(&root, &private, handle, expected)
}

/// Removes a directory that was never finished: by its identity, or else only while it is empty.
fn remove_unfinished(root: &OwnedFd, path: &Path, expected: Option<&Inode>) -> Result<(), Refusal> {
    let Some(handle) = find(root, path)? else { return Ok(()) };
    if compare(&handle, path, expected).is_ok() {
        return empty_and_remove(root, path, handle, expected);
    }
    match unlinkat(root, name_of(path)?, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Refusal::Foreign(path.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Opens one of the names of a resource; `None` when nothing has it.
fn find(root: &OwnedFd, path: &Path) -> Result<Option<OwnedFd>, Refusal> {
    match beneath::open_directory(root, name_of(path)?) {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(Refusal::NotADirectory(path.to_owned())),
        Err(Errno::XDEV) => Err(Refusal::Mounted(path.to_owned())),
        Err(error) => Err(error.into()),
    }
}

fn name_of(path: &Path) -> Result<&std::ffi::OsStr, Refusal> {
    path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput).into())
}

fn compare(handle: &OwnedFd, path: &Path, expected: Option<&Inode>) -> Result<(), Refusal> {
    if expected == Some(&Inode::of(handle)?) {
        return Ok(());
    }
    Err(Refusal::Foreign(path.to_owned()))
}

/// Renames without ever taking the place of something.
fn rename(root: &OwnedFd, from: &Path, to: &Path) -> Result<(), Refusal> {
    match beneath::rename_into_free(root, name_of(from)?, root, name_of(to)?) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::EXIST | Errno::NOTEMPTY) => Err(Refusal::Foreign(to.to_owned())),
        Err(Errno::BUSY) => Err(Refusal::Mounted(from.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Unmounts the directory's own disk, and refuses whatever else is mounted in it, before
/// anything in it is touched.
fn clear_mounts(path: &Path) -> Result<(), Refusal> {
    disk::unmount_own(path)?;
    match mounts::read()?.into_iter().find(|mount| mount.path.starts_with(path)) {
        Some(mount) => Err(Refusal::Mounted(mount.path)),
        None => Ok(()),
    }
}

/// Empties a directory that has its last name already, and removes it while it is still ours.
fn empty_and_remove(
    root: &OwnedFd,
    path: &Path,
    handle: OwnedFd,
    expected: Option<&Inode>,
) -> Result<(), Refusal> {
    compare(&handle, path, expected)?;
    clear_mounts(path)?;
    let top = Top { handle: read_handle(&handle)?, path, moved_count: 0 };
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

/// Returns a handle to read a directory by, made accessible if it is not.
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
    moved_count: u64,
}

impl Top<'_> {
    /// Removes everything in it: files at once, directories after they were flattened.
    fn empty(mut self) -> Result<(), Refusal> {
        let (mut idle_rounds, mut moved_before) = (0, 0);
        while idle_rounds < MOST_IDLE_ROUNDS {
            let entries = entries_of(&self.handle)?;
            if entries.is_empty() {
                return Ok(());
            }
            idle_rounds = if self.moved_count > moved_before { 0 } else { idle_rounds + 1 };
            moved_before = self.moved_count;
            for name in &entries {
                match self.open(&self.handle, name)? {
                    Some(directory) => self.flatten(name, &read_handle(&directory)?)?,
                    None => self.unlink(&self.handle, name, AtFlags::empty())?,
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "somebody keeps writing into it").into())
    }

    /// Empties one sub-directory by moving its own sub-directories up, then removes it.
    fn flatten(&mut self, name: &CStr, directory: &OwnedFd) -> Result<(), Refusal> {
        for inner in entries_of(directory)? {
            match self.open(directory, &inner)? {
                Some(found) => {
                    // A directory changes its parent only while it can be written to.
                    drop(read_handle(&found)?);
                    self.move_up(directory, &inner)?;
                }
                None => self.unlink(directory, &inner, AtFlags::empty())?,
            }
        }
        self.unlink(&self.handle, name, AtFlags::REMOVEDIR)
    }

    /// Opens an entry if it is a directory; what is mounted there stays.
    fn open(&self, parent: &OwnedFd, name: &CStr) -> Result<Option<OwnedFd>, Refusal> {
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
            // Somebody exchanged it for a link or a file, which goes as what it is.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => Err(self.mounted(name)),
            Err(error) => Err(error.into()),
        }
    }

    fn mounted(&self, name: &CStr) -> Refusal {
        Refusal::Mounted(self.path.join(OsString::from_vec(name.to_bytes().to_vec())))
    }

    fn unlink(&self, parent: &OwnedFd, name: &CStr, flags: AtFlags) -> Result<(), Refusal> {
        match unlinkat(parent, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Err(self.mounted(name)),
            // It is another thing than a moment ago: the next round looks at it again.
            Err(Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &CStr) -> Result<(), Refusal> {
        loop {
            self.moved_count += 1;
            let target = format!(".creel-moved-{}", self.moved_count);
            match beneath::rename_into_free(directory, name, &self.handle, target.as_str()) {
                // The name is taken by something that was here before.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) => return Err(self.mounted(name)),
                Err(error) => return Err(error.into()),
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
