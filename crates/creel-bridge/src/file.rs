//! Files into and out of a sandbox: `put` and `get`.
//!
//! `put --mode OCTAL --path PATH` writes its input to a file, atomically, and creates missing
//! parent directories. `get --most BYTES --path PATH` writes a file to its output. Both report a
//! failure by exit code, see [`FileError`], and in one sentence on standard error.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why a file could not be transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileError {
    /// Another system error.
    Failed,
    /// There is no such file.
    Absent,
    /// The file may not be read or written.
    Denied,
    /// There is no room for the file, on the disk or within the given maximum.
    NoRoom,
    /// The path does not name a file.
    Impossible,
}

impl FileError {
    /// All verdicts.
    const ALL: [Self; 5] =
        [Self::Failed, Self::Absent, Self::Denied, Self::NoRoom, Self::Impossible];

    /// Returns the exit code of the verdict.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Absent => 10,
            Self::Denied => 11,
            Self::NoRoom => 12,
            Self::Impossible => 13,
        }
    }

    /// Returns the verdict for an exit code.
    pub fn of_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| i32::from(verdict.code()) == code)
    }

    /// Returns the verdict for a system error.
    pub fn of_error(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::NotFound => Self::Absent,
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Self::Denied,
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Self::NoRoom,
            Kind::IsADirectory
            | Kind::NotADirectory
            | Kind::AlreadyExists
            | Kind::DirectoryNotEmpty
            | Kind::InvalidFilename
            | Kind::InvalidInput => Self::Impossible,
            _ => Self::Failed,
        }
    }
}

/// Writes a file atomically and creates missing parent directories.
///
/// # Errors
///
/// Fails when the file cannot be written. An existing file is then untouched.
pub fn put(path: &Path, mode: u32, mut content: impl Read) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.file_name().is_none() || path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    fs::create_dir_all(directory)?;
    let draft = draft_in(directory);
    let written = write(&draft, mode, &mut content).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The draft is ours and useless. The first error is the one that matters.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Returns a path for a draft. It does not extend the file's own name, which may already have the
/// maximum length.
fn draft_in(directory: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    directory.join(format!(".creel-{}-{}", std::process::id(), now.as_nanos()))
}

fn write(draft: &Path, mode: u32, content: &mut impl Read) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    io::copy(content, &mut file)?;
    file.set_permissions(Permissions::from_mode(mode))
}

/// Writes a file to an output, unless the file is larger than `most` bytes.
///
/// # Errors
///
/// Fails when the path cannot be read, is not a file, or is too large. Output written by then is
/// void.
pub fn get(path: &Path, most: u64, mut output: impl Write) -> io::Result<()> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    if found.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    // Reads at most one byte too many: that byte shows that the file is too large, even if it grows
    // while it is read.
    let copied = io::copy(&mut file.take(most.saturating_add(1)), &mut output)?;
    if copied > most {
        let message = format!("it is larger than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_with_its_mode() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("deep/er/odd 'name'\n\u{2603}");
        for (content, mode) in [("one", 0o644), ("two", 0o600), ("", 0o755)] {
            put(&path, mode, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
            let mut out = Vec::new();
            get(&path, 3, &mut out).unwrap();
            assert_eq!(out, content.as_bytes());
        }
        let beside = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "no draft is left");
    }

    #[test]
    fn each_error_has_its_own_verdict() {
        let home = tempfile::tempdir().unwrap();
        let verdict = |result: io::Result<()>| FileError::of_error(&result.unwrap_err());
        let at = |name: &str| home.path().join(name);
        fs::write(at("file"), "four").unwrap();
        fs::create_dir(at("directory")).unwrap();
        assert_eq!(verdict(get(&at("none"), 9, io::sink())), FileError::Absent);
        assert_eq!(verdict(get(&at("directory"), 9, io::sink())), FileError::Impossible);
        assert_eq!(verdict(get(&at("file"), 3, io::sink())), FileError::NoRoom);
        assert_eq!(verdict(put(&at("directory"), 0o644, io::empty())), FileError::Impossible);
        assert_eq!(verdict(put(&at("file/below"), 0o644, io::empty())), FileError::Impossible);
        assert_eq!(verdict(put(&at(&"n".repeat(256)), 0o644, io::empty())), FileError::Impossible);
        for verdict in FileError::ALL {
            assert_eq!(FileError::of_code(verdict.code().into()), Some(verdict));
        }
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (target, link) = (home.path().join("target"), home.path().join("link"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        put(&link, 0o644, &b"new"[..]).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }
}
