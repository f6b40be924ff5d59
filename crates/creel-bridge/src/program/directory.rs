//! The directory of a bridge: what is where in it, and whether a bridge serves there.
//!
//! The names are documented in `creel_bridge::serve`.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::failure::Failure;

/// How long a bridge tries to get the lock: whoever only looks whether it is held has it for an
/// instant.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How often it tries.
const LOCK_PERIOD: Duration = Duration::from_millis(5);

/// The directory of a bridge.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: PathBuf,
}

/// What whoever listens to a bridge must know of its order.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// How often a sign of life is due.
    pub heartbeat_ms: u64,
}

impl Directory {
    /// Names a directory, which may not exist yet.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes what is missing; only this user may look into it.
    pub(crate) fn make(&self) -> Result<(), Failure> {
        for path in
            [&self.path, &self.spool(), &self.commands(), &self.questions(), &self.answers()]
        {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(Failure::of(format!("make {}", path.display())))?;
        }
        Ok(())
    }

    /// Returns the directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where the events are.
    pub(crate) fn spool(&self) -> PathBuf {
        self.path.join("spool")
    }

    /// Returns where commands come in.
    pub(crate) fn commands(&self) -> PathBuf {
        self.path.join("commands")
    }

    /// Returns where programs of the runtime leave questions.
    pub(crate) fn questions(&self) -> PathBuf {
        self.path.join("questions")
    }

    /// Returns where answers are left.
    pub(crate) fn answers(&self) -> PathBuf {
        self.path.join("answers")
    }

    /// Returns the file that the one `exec` that carries out a turn holds.
    pub(crate) fn turn(&self) -> PathBuf {
        self.path.join("turn")
    }

    /// Returns the file that changes with every sign of the supervisor.
    pub(crate) fn sign(&self) -> PathBuf {
        self.path.join("sign")
    }

    /// Returns the file into which a bridge says what it cannot say otherwise.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns the file that a bridge holds.
    pub(crate) fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Takes the lock, and writes this process into it; `None` means that a bridge serves here.
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

    /// Leaves a sign that the supervisor lives.
    pub(crate) fn leave_sign(&self) -> io::Result<()> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        fs::write(self.sign(), since_epoch.unwrap_or_default().as_nanos().to_string())
    }

    /// Keeps what whoever listens must know.
    pub(crate) fn keep_terms(&self, terms: Terms) -> io::Result<()> {
        write_whole(&self.path.join("terms"), &serde_json::to_vec(&terms)?)
    }

    /// Returns what whoever listens must know, where a bridge has kept it.
    pub(crate) fn terms(&self) -> Option<Terms> {
        serde_json::from_slice(&fs::read(self.path.join("terms")).ok()?).ok()
    }

    /// Returns up to which number the supervisor has the events.
    pub(crate) fn acknowledged(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("acknowledged")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Keeps up to which number the supervisor has the events.
    pub(crate) fn acknowledge(&self, number: u64) -> io::Result<()> {
        write_whole(&self.path.join("acknowledged"), number.to_string().as_bytes())
    }
}

/// Returns whether somebody else holds a file.
pub(crate) fn is_held(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Writes a file as a whole or not at all.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.draft", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
    file.write_all(content)?;
    file.sync_data()?;
    fs::rename(&draft, path)
}
