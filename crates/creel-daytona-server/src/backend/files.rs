//! Files in a sandbox.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use creel_model::task;
use serde::Serialize;

use crate::moment::Moment;

use super::SandboxBody;
use super::docker::quoted_path;

/// The description of a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileEntry {
    name: String,
    path: String,
    is_dir: bool,
    size: u64,
    mode: String,
    permissions: String,
    owner: String,
    group: String,
    mod_time: String,
    modified_at: Moment,
}

impl SandboxBody {
    /// Reads a file.
    pub(crate) async fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                task::blocking(move || fs::read(path)).await
            }
            Self::Docker(body) => body.capture(&format!("cat {}", quoted_path(path)), b"").await,
        }
    }

    /// Writes a file, and creates missing parent directories.
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
                let path = quoted_path(path);
                let line = format!("mkdir -p \"$(dirname {path})\" && cat > {path}");
                body.capture(&line, &content).await.map(drop)
            }
        }
    }

    /// Creates a directory and its missing parents.
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
                let path = quoted_path(path);
                let mode = mode.unwrap_or(0o755);
                let line = format!("mkdir -p {path} && chmod {mode:o} {path}");
                body.capture(&line, b"").await.map(drop)
            }
        }
    }

    /// Removes a file, or a directory if `recursive` is set.
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
                body.capture(&format!("rm {flag} {}", quoted_path(path)), b"").await.map(drop)
            }
        }
    }

    /// Describes a file.
    pub(crate) async fn describe(&self, path: &str) -> io::Result<FileEntry> {
        let api_path = path.to_owned();
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                task::blocking(move || Ok(FileEntry::of(api_path, &fs::metadata(&path)?))).await
            }
            Self::Docker(body) => {
                let line = format!("stat -L -c '{STAT}' {}", quoted_path(path));
                let text = body.capture(&line, b"").await?;
                let text = String::from_utf8_lossy(&text).into_owned();
                let entry =
                    text.lines().find_map(|line| FileEntry::of_stat(line, |_| api_path.clone()));
                entry.ok_or_else(not_understood)
            }
        }
    }

    /// Describes the entries of a directory, down to this many levels.
    pub(crate) async fn list(&self, path: &str, depth: usize) -> io::Result<Vec<FileEntry>> {
        let mut entries = match self {
            Self::Process(body) => {
                let (root, api_path) = (body.host_path(path), path.to_owned());
                task::blocking(move || list(&root, &api_path, depth)).await?
            }
            Self::Docker(body) => {
                let directory = quoted_path(path);
                // Entries that cannot be described are skipped; a missing directory is reported.
                let line = format!(
                    "ls -d {directory} >/dev/null && cd {directory} && {{ find . -mindepth 1 -maxdepth {depth} \
                     -exec stat -L -c '{STAT}' {{}} + 2>/dev/null; true; }}"
                );
                let text = body.capture(&line, b"").await?;
                let text = String::from_utf8_lossy(&text).into_owned();
                let api_path = |name: &str| joined(path, name.trim_start_matches("./"));
                text.lines().filter_map(|line| FileEntry::of_stat(line, api_path)).collect()
            }
        };
        entries.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(entries)
    }
}

/// Joins a relative path to a base path, which is kept as written.
pub(crate) fn joined(base: &str, relative: &str) -> String {
    match relative {
        "" => base.to_owned(),
        relative => format!("{}/{relative}", base.trim_end_matches('/')),
    }
}

/// The format for `stat`: kind, size, mode, owner, group, time, path.
const STAT: &str = "%f %s %a %u %g %Y %n";

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer of stat is not understood")
}

fn list(root: &Path, api_path: &str, depth: usize) -> io::Result<Vec<FileEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let api_path = joined(api_path, &name);
        let own = fs::symlink_metadata(&path)?;
        if depth > 1 && own.is_dir() {
            // A directory that may not be read is described all the same.
            entries.extend(list(&path, &api_path, depth - 1).unwrap_or_default());
        }
        // A dangling link is described as a link.
        entries.push(FileEntry::of(api_path, &fs::metadata(&path).unwrap_or(own)));
    }
    Ok(entries)
}

impl FileEntry {
    fn of(path: String, metadata: &Metadata) -> Self {
        Self::new(path, metadata.is_dir(), metadata.len(), metadata.mode())
            .owned_by(metadata.uid().to_string(), metadata.gid().to_string())
            .modified_at(metadata.mtime())
    }

    /// Parses a line of `stat`. `api_path` converts its path to the reported one.
    fn of_stat(line: &str, api_path: impl Fn(&str) -> String) -> Option<Self> {
        let mut fields = line.splitn(7, ' ');
        let raw = u32::from_str_radix(fields.next()?, 16).ok()?;
        let size = fields.next()?.parse().ok()?;
        let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
        let (owner, group) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let modified = fields.next()?.parse().ok()?;
        let path = api_path(fields.next()?);
        let is_dir = raw & 0o170_000 == 0o040_000;
        Some(Self::new(path, is_dir, size, mode).owned_by(owner, group).modified_at(modified))
    }

    fn new(path: String, is_dir: bool, size: u64, mode: u32) -> Self {
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            name,
            path,
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

/// Formats a mode as `ls` does.
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
    fn a_line_of_stat_is_parsed() {
        let api_path = |name: &str| joined("/data", name.trim_start_matches("./"));
        let entry = FileEntry::of_stat("41ed 4096 755 0 0 1700000000 ./my dir", api_path).unwrap();
        assert_eq!((entry.name.as_str(), entry.is_dir), ("my dir", true));
        assert_eq!(entry.path, "/data/my dir");
        assert_eq!((entry.mode.as_str(), entry.permissions.as_str()), ("drwxr-xr-x", "0755"));
    }
}
