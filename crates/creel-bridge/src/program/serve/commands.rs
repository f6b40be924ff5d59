//! Commands of the supervisor: files that wait to be taken.
//!
//! A command is taken exactly once. Its event is on disk before its file is replaced by an empty
//! mark. After a crash, a file whose event is in the spool is replaced without being taken again.
//! Actions that are safe to repeat happen before the event. A turn is not safe to repeat, so it
//! starts after the event.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use creel_bridge::serve::BridgeCommand;

/// Seconds and nanoseconds since the epoch.
type Instant = (i64, i64);

/// A command that waits to be taken.
#[derive(Debug)]
pub(super) struct InboxCommand {
    /// Its key.
    pub key: String,
    /// The command.
    pub command: BridgeCommand,
}

/// The directory of incoming commands.
#[derive(Debug)]
pub(super) struct Inbox {
    directory: PathBuf,
    /// Keys that were taken, but whose files could not be replaced.
    taken: HashSet<String>,
}

impl Inbox {
    /// Opens the inbox. Files with these keys were taken before a crash.
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

    /// Returns the waiting commands, oldest first. Skips files that cannot be parsed yet.
    pub(super) fn pending(&self) -> Vec<InboxCommand> {
        let mut found = self.files().unwrap_or_default();
        found.sort();
        let keys = found.into_iter().map(|(_, key)| key).filter(|key| self.is_new(key));
        keys.filter_map(|key| {
            let command = serde_json::from_slice(&fs::read(self.file(&key)).ok()?).ok()?;
            Some(InboxCommand { key, command })
        })
        .collect()
    }

    /// Returns whether a key was never taken. Removes a file that reuses a taken key.
    fn is_new(&self, key: &str) -> bool {
        let is_done = self.directory.join(format!("{key}.done")).exists();
        if is_done {
            // The next scan tries again.
            let _ = fs::remove_file(self.file(key));
        }
        !is_done && !self.taken.contains(key)
    }

    /// Returns all command files with the time of their last change. That is the kernel's change
    /// time, because an upload can set the modification time.
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

    /// Marks a command as taken, and removes its file, because a prompt may hold a secret. Its
    /// event is already on disk. After a crash in between, the mark causes the file to be removed.
    pub(super) fn close(&mut self, key: &str) {
        let done = self.directory.join(format!("{key}.done"));
        let marked = fs::write(done, "").and_then(|()| fs::remove_file(self.file(key)));
        if marked.is_err() {
            self.taken.insert(key.to_owned());
        }
    }
}
