//! The directory of a bridge: its layout, and whether a bridge serves there.
//!
//! `creel_bridge::serve` documents the names.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::error::BridgeError;

/// How long a bridge tries to take the lock. A process that only checks the lock holds it for an
/// instant.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// The interval between two attempts.
const LOCK_PERIOD: Duration = Duration::from_millis(5);

/// The directory of a bridge.
#[derive(Debug, Clone)]
pub(crate) struct BridgeDirectory {
    path: PathBuf,
}

/// The settings of a bridge that its readers need.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ReaderSettings {
    /// The interval between two signs of life.
    pub heartbeat_ms: u64,
}

impl BridgeDirectory {
    /// Refers to a directory, which may not exist yet.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Creates missing directories, accessible to this user only.
    pub(crate) fn create(&self) -> Result<(), BridgeError> {
        for path in
            [&self.path, &self.spool(), &self.commands(), &self.questions(), &self.answers()]
        {
            let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
            created.map_err(BridgeError::of(format!("make {}", path.display())))?;
        }
        Ok(())
    }

    /// Returns the path of the directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the events.
    pub(crate) fn spool(&self) -> PathBuf {
        self.path.join("spool")
    }

    /// Returns the directory of incoming commands.
    pub(crate) fn commands(&self) -> PathBuf {
        self.path.join("commands")
    }

    /// Returns the directory of the runtime's questions.
    pub(crate) fn questions(&self) -> PathBuf {
        self.path.join("questions")
    }

    /// Returns the directory of the answers.
    pub(crate) fn answers(&self) -> PathBuf {
        self.path.join("answers")
    }

    /// Returns the file that is locked by the one `exec` that runs a turn.
    pub(crate) fn turn(&self) -> PathBuf {
        self.path.join("turn")
    }

    /// Returns the file that changes with every message of the supervisor.
    pub(crate) fn sign(&self) -> PathBuf {
        self.path.join("sign")
    }

    /// Returns the file for messages that a bridge cannot report otherwise.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns the file that a bridge locks.
    pub(crate) fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Takes the lock and writes this process id into it. Returns `None` if a bridge serves here.
    pub(crate) fn lock(&self) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        let mut lock =
            options.create(true).truncate(false).write(true).mode(0o600).open(self.lock_file())?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        while let Err(refusal) = lock.try_lock() {
            match refusal {
                TryLockError::Error(error) => return Err(error),
                TryLockError::WouldBlock if Instant::now() >= deadline => return Ok(None),
                TryLockError::WouldBlock => thread::sleep(LOCK_PERIOD),
            }
        }
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(Some(lock))
    }

    /// Returns whether a bridge serves here now.
    pub(crate) fn is_served(&self) -> bool {
        File::open(self.lock_file()).is_ok_and(|lock| is_held(&lock))
    }

    /// Records that the supervisor is alive.
    pub(crate) fn leave_sign(&self) -> io::Result<()> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        fs::write(self.sign(), since_epoch.unwrap_or_default().as_nanos().to_string())
    }

    /// Stores the settings that readers need.
    pub(crate) fn store_settings(&self, settings: ReaderSettings) -> io::Result<()> {
        write_whole(&self.path.join("terms"), &serde_json::to_vec(&settings)?)
    }

    /// Returns the settings that readers need, if a bridge has stored them.
    pub(crate) fn settings(&self) -> Option<ReaderSettings> {
        serde_json::from_slice(&fs::read(self.path.join("terms")).ok()?).ok()
    }

    /// Returns the last event number that the supervisor has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("acknowledged")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Stores the last event number that the supervisor has acknowledged.
    pub(crate) fn acknowledge(&self, number: u64) -> io::Result<()> {
        write_whole(&self.path.join("acknowledged"), number.to_string().as_bytes())
    }
}

/// Returns whether another process holds the lock on a file.
pub(crate) fn is_held(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Writes a file atomically.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.draft", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
    file.write_all(content)?;
    file.sync_data()?;
    fs::rename(&draft, path)
}
