//! Files in a sandbox.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use creel_core::task;
use serde::Serialize;

use super::Body;
use super::docker::path_word;
use crate::moment::Moment;

/// What is told about a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileEntry {
    name: String,
    is_dir: bool,
    size: u64,
    mode: String,
    permissions: String,
    owner: String,
    group: String,
    mod_time: String,
    modified_at: Moment,
}

impl Body {
    /// Reads a file.
    pub(crate) async fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                task::blocking(move || fs::read(path)).await
            }
            Self::Docker(body) => body.capture(&format!("cat {}", path_word(path)), b"").await,
        }
    }

    /// Writes a file, making the directories above it.
    pub(crate) async fn write(&self, path: &str, content: bytes::Bytes) -> io::Result<()> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                let write = move || {
                    path.parent().map_or(Ok(()), fs::create_dir_all)?;
                    fs::write(path, content)
                };
                task::blocking(write).await
            }
            Self::Docker(body) => {
                let path = path_word(path);
                let line = format!("mkdir -p \"$(dirname {path})\" && cat > {path}");
                body.capture(&line, &content).await.map(drop)
            }
        }
    }

    /// Makes a directory and those above it.
    pub(crate) async fn make_directory(&self, path: &str, mode: Option<u32>) -> io::Result<()> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                let make = move || {
                    fs::create_dir_all(&path)?;
                    let mode = mode.map(fs::Permissions::from_mode);
                    mode.map_or(Ok(()), |mode| fs::set_permissions(path, mode))
                };
                task::blocking(make).await
            }
            Self::Docker(body) => {
                let path = path_word(path);
                let mode = mode.unwrap_or(0o755);
                let line = format!("mkdir -p {path} && chmod {mode:o} {path}");
                body.capture(&line, b"").await.map(drop)
            }
        }
    }

    /// Removes a file, or a directory if that is asked for.
    pub(crate) async fn remove(&self, path: &str, recursive: bool) -> io::Result<()> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                let remove = move || match fs::symlink_metadata(&path)?.is_dir() {
                    true if recursive => fs::remove_dir_all(path),
                    true => Err(io::Error::other("cannot delete directory without recursive flag")),
                    false => fs::remove_file(path),
                };
                task::blocking(remove).await
            }
            Self::Docker(body) => {
                let flag = if recursive { "-r" } else { "" };
                body.capture(&format!("rm {flag} {}", path_word(path)), b"").await.map(drop)
            }
        }
    }

    /// Describes a file.
    pub(crate) async fn describe(&self, path: &str) -> io::Result<FileEntry> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                task::blocking(move || Ok(FileEntry::of(&path, &fs::metadata(&path)?))).await
            }
            Self::Docker(body) => {
                let line = format!("stat -L -c '{STAT}' {}", path_word(path));
                let text = body.capture(&line, b"").await?;
                let text = String::from_utf8_lossy(&text).into_owned();
                text.lines().find_map(FileEntry::of_stat).ok_or_else(not_understood)
            }
        }
    }

    /// Describes what is in a directory.
    pub(crate) async fn list(&self, path: &str) -> io::Result<Vec<FileEntry>> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                task::blocking(move || list(&path)).await
            }
            Self::Docker(body) => {
                let line = format!(
                    "cd {} && for one in * .[!.]*; do [ -e \"$one\" ] && stat -L -c '{STAT}' \
                     \"./$one\"; done; true",
                    path_word(path)
                );
                let text = body.capture(&line, b"").await?;
                let text = String::from_utf8_lossy(&text).into_owned();
                Ok(text.lines().filter_map(FileEntry::of_stat).collect())
            }
        }
    }
}

/// What `stat` is asked for: kind, size, mode, owner, group, time, name.
const STAT: &str = "%f %s %a %U %G %Y %n";

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer of stat is not understood")
}

fn list(path: &Path) -> io::Result<Vec<FileEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        // A link to nowhere is described as the link it is.
        let metadata = fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path))?;
        entries.push(FileEntry::of(&path, &metadata));
    }
    entries.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(entries)
}

impl FileEntry {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::new(name, metadata.is_dir(), metadata.len(), metadata.mode())
            .owned_by(metadata.uid().to_string(), metadata.gid().to_string())
            .modified_at(metadata.mtime())
    }

    /// Reads a line of `stat`.
    fn of_stat(line: &str) -> Option<Self> {
        let mut words = line.splitn(7, ' ');
        let raw = u32::from_str_radix(words.next()?, 16).ok()?;
        let size = words.next()?.parse().ok()?;
        let mode = u32::from_str_radix(words.next()?, 8).ok()?;
        let (owner, group) = (words.next()?.to_owned(), words.next()?.to_owned());
        let modified = words.next()?.parse().ok()?;
        let name = words.next()?.rsplit('/').next()?.to_owned();
        let is_dir = raw & 0o170_000 == 0o040_000;
        Some(Self::new(name, is_dir, size, mode).owned_by(owner, group).modified_at(modified))
    }

    fn new(name: String, is_dir: bool, size: u64, mode: u32) -> Self {
        Self {
            name,
            is_dir,
            size,
            mode: symbolic(is_dir, mode),
            permissions: format!("{:04o}", mode & 0o7777),
            owner: String::new(),
            group: String::new(),
            mod_time: String::new(),
            modified_at: Moment(0),
        }
    }

    fn owned_by(mut self, owner: String, group: String) -> Self {
        (self.owner, self.group) = (owner, group);
        self
    }

    fn modified_at(mut self, seconds: i64) -> Self {
        self.modified_at = Moment(seconds.saturating_mul(1000));
        self.mod_time = self.modified_at.to_string();
        self
    }
}

/// Writes a mode as `ls` does.
fn symbolic(is_dir: bool, mode: u32) -> String {
    let mut text = String::from(if is_dir { "d" } else { "-" });
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if mode >> shift & bit != 0 { letter } else { '-' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read() {
        let entry = FileEntry::of_stat("41ed 4096 755 root root 1700000000 ./my dir").unwrap();
        assert_eq!((entry.name.as_str(), entry.is_dir), ("my dir", true));
        assert_eq!((entry.mode.as_str(), entry.permissions.as_str()), ("drwxr-xr-x", "0755"));
    }
}
