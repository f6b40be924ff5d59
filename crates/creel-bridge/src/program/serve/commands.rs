//! Commands of the supervisor: files that wait to be taken.
//!
//! A command is taken exactly once: the event that says so is on the disk before its
//! file is replaced by an empty mark, and a file whose event is found after a crash is
//! replaced without being taken. What may happen twice without harm is done before the
//! event; a turn, which may not, after it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use creel_bridge::serve::Command;

/// Seconds and nanoseconds since the epoch.
type Instant = (i64, i64);

/// A command that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Its key.
    pub key: String,
    /// What it says.
    pub command: Command,
}

/// Where commands come in.
#[derive(Debug)]
pub(super) struct Inbox {
    directory: PathBuf,
    /// Keys that were taken and whose files could not be replaced.
    taken: HashSet<String>,
}

impl Inbox {
    /// Opens it; files of these keys were taken before a crash.
    pub(super) fn open(directory: PathBuf, taken: impl IntoIterator<Item = String>) -> Self {
        let mut inbox = Self { directory, taken: HashSet::new() };
        for key in taken {
            if inbox.file(&key).exists() {
                inbox.close(&key);
            }
        }
        inbox
    }

    fn file(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}.json"))
    }

    /// Returns what waits, the oldest first. What cannot be read is still on its way.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let mut found = self.files().unwrap_or_default();
        found.sort();
        let keys = found.into_iter().map(|(_, key)| key).filter(|key| self.is_new(key));
        keys.filter_map(|key| {
            let command = serde_json::from_slice(&fs::read(self.file(&key)).ok()?).ok()?;
            Some(Waiting { key, command })
        })
        .collect()
    }

    /// Returns whether a key was never taken. What came again under a key that was is removed.
    fn is_new(&self, key: &str) -> bool {
        let is_done = self.directory.join(format!("{key}.done")).exists();
        if is_done {
            // The next look tries again.
            let _ = fs::remove_file(self.file(key));
        }
        !is_done && !self.taken.contains(key)
    }

    /// Returns all files with the instant at which they came to be what they are. That is the
    /// kernel's own; the time of the content is what an upload says it is.
    fn files(&self) -> io::Result<Vec<(Instant, String)>> {
        let entries = fs::read_dir(&self.directory)?;
        let file = |path: &Path| {
            let key = path.file_name()?.to_str()?.strip_suffix(".json")?;
            let is_draft = key.is_empty() || key.starts_with('.');
            let about = fs::metadata(path).ok().filter(|_| !is_draft)?;
            Some(((about.ctime(), about.ctime_nsec()), key.to_owned()))
        };
        Ok(entries.filter_map(|entry| file(&entry.ok()?.path())).collect())
    }

    /// Keeps that a command was taken, and removes what it said: a prompt may hold a secret. Its
    /// event is on the disk. After a crash in between, the file is removed by its mark.
    pub(super) fn close(&mut self, key: &str) {
        let done = self.directory.join(format!("{key}.done"));
        let marked = fs::write(done, "").and_then(|()| fs::remove_file(self.file(key)));
        if marked.is_err() {
            self.taken.insert(key.to_owned());
        }
    }
}
