//! Recursive listings of a sandbox's directories, and changes other than content.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use creel_model::task;

use super::SandboxBody;
use super::docker::quoted_path;
use super::shell::quoted;

/// Which entries of a tree to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Only {
    /// Regular files.
    Files,
    /// Everything except directories, including links.
    NoDirectories,
}

impl SandboxBody {
    /// Lists what is below a path, as sorted paths relative to it. A file is its own `""`.
    ///
    /// Skips what cannot be read, as the real service does.
    pub(crate) async fn below(&self, path: &str, only: Only) -> io::Result<Vec<String>> {
        match self {
            Self::Process(body) => {
                let root = body.host_path(path);
                task::blocking(move || Ok(walk(&root, only))).await
            }
            Self::Docker(_) => {
                let kind = if only == Only::Files { "-type f" } else { "! -type d" };
                self.found(path, &format!("{kind} -print0"), '\0').await
            }
        }
    }

    /// Lists files below a path that may contain a text. The caller checks them.
    pub(crate) async fn candidates(&self, path: &str, text: &str) -> io::Result<Vec<String>> {
        match self {
            Self::Process(_) => self.below(path, Only::Files).await,
            // Reading each file from here would need one exec per file.
            Self::Docker(_) => {
                let test = format!("-type f -exec grep -lF -e {} {{}} +", quoted(text));
                self.found(path, &test, '\n').await
            }
        }
    }

    /// Runs `find` in a container.
    async fn found(&self, path: &str, test: &str, end: char) -> io::Result<Vec<String>> {
        let Self::Docker(body) = self else { return Ok(Vec::new()) };
        let line = format!("find {} {test} 2>/dev/null; true", quoted_path(path));
        let text = body.capture(&line, b"").await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let base = if path.starts_with('/') { path.to_owned() } else { format!("./{path}") };
        let names = text.split(end).filter(|name| !name.is_empty());
        let relative = |name: &str| {
            let rest = name.strip_prefix(&base).unwrap_or(name);
            rest.trim_start_matches('/').to_owned()
        };
        let mut found: Vec<String> = names.map(relative).collect();
        found.sort();
        Ok(found)
    }

    /// Renames a file or directory.
    pub(crate) async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match self {
            Self::Process(body) => {
                let (from, to) = (body.host_path(from), body.host_path(to));
                task::blocking(move || fs::rename(from, to)).await
            }
            Self::Docker(body) => {
                let line = format!("mv {} {}", quoted_path(from), quoted_path(to));
                body.capture(&line, b"").await.map(drop)
            }
        }
    }

    /// Sets the permission bits.
    pub(crate) async fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                let mode = fs::Permissions::from_mode(mode);
                task::blocking(move || fs::set_permissions(path, mode)).await
            }
            Self::Docker(body) => {
                body.capture(&format!("chmod {mode:o} {}", quoted_path(path)), b"").await.map(drop)
            }
        }
    }

    /// Sets the owner and the group, each by name or number. An empty one is left unchanged.
    pub(crate) async fn set_owner(&self, path: &str, owner: &str, group: &str) -> io::Result<()> {
        match self {
            Self::Process(body) => {
                let path = body.host_path(path);
                let user = number_of("/etc/passwd", "user", owner)?;
                let group = number_of("/etc/group", "group", group)?;
                task::blocking(move || chown(path, user, group)).await
            }
            Self::Docker(body) => {
                let owner_arg = quoted(&format!("{owner}:{group}"));
                let owner_arg = if group.is_empty() { quoted(owner) } else { owner_arg };
                body.capture(&format!("chown {owner_arg} {}", quoted_path(path)), b"")
                    .await
                    .map(drop)
            }
        }
    }
}

/// Returns the id of a user or group, given by id or by name.
fn number_of(file: &str, what: &str, name: &str) -> io::Result<Option<u32>> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let entries = fs::read_to_string(file)?;
    let found = entries.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    });
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, format!("{what} not found"));
    found.map(Some).ok_or_else(missing)
}

fn walk(root: &Path, only: Only) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        } else if only == Only::NoDirectories || metadata.is_file() {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            found.push(relative.to_string_lossy().into_owned());
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_known_by_name_and_number() {
        assert_eq!(number_of("/etc/passwd", "user", "root").unwrap(), Some(0));
        assert_eq!(number_of("/etc/passwd", "user", "1234").unwrap(), Some(1234));
        assert_eq!(number_of("/etc/passwd", "user", "").unwrap(), None);
        let error = number_of("/etc/passwd", "user", "no such user").unwrap_err();
        assert_eq!(error.to_string(), "user not found");
    }

    #[test]
    fn a_walk_follows_no_link_and_misses_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink("/", root.path().join("a/up")).unwrap();
        assert_eq!(walk(root.path(), Only::Files), ["a/b/file"]);
        assert_eq!(walk(root.path(), Only::NoDirectories), ["a/b/file", "a/up"]);
        assert_eq!(walk(&root.path().join("a/b/file"), Only::Files), [""]);
        assert!(walk(&root.path().join("none"), Only::Files).is_empty());
    }
}
