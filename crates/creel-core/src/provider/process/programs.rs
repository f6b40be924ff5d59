//! Programs that several trees share.
//!
//! A program is named by its content, so it is written once and never changes.
//! Trees are no boundary, and one of them may have damaged the file: what is
//! there is compared before it is used, and replaced as a whole. A crash in the
//! middle leaves a draft that nobody starts.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// The mode of a program: nobody else gets into the directory, and nobody is to write to it.
const MODE: u32 = 0o500;

/// Writes a program, unless it is there already; returns where.
pub(super) fn place(directory: &Path, name: &str, content: &[u8]) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(name);
    if is_whole(&path, content) {
        return Ok(path);
    }
    let draft = directory.join(format!(".{}", Uuid::new_v4().simple()));
    let written = write(&draft, content).and_then(|()| fs::rename(&draft, &path));
    if written.is_err() {
        // The draft is ours and useless; the first error is the one that matters.
        let _ = fs::remove_file(&draft);
    }
    written.map(|()| path)
}

fn is_whole(path: &Path, content: &[u8]) -> bool {
    let has_mode = |found: fs::Metadata| found.permissions().mode() & 0o777 == MODE;
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && has_mode(found))
        && fs::read(path).is_ok_and(|found| found == content)
}

fn write(draft: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(draft)?;
    file.write_all(content)?;
    // The mask of this process may have taken rights away.
    file.set_permissions(fs::Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_written_once_and_mended_when_it_is_damaged() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("programs");
        let path = place(&directory, "tool", b"one").unwrap();
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let first = inode(&path);
        place(&directory, "tool", b"one").unwrap();
        assert_eq!(inode(&path), first);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(&path, b"evil").unwrap();
        place(&directory, "tool", b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }
}
