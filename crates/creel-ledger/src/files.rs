//! The files of a ledger: where each of them is in its directory.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Returns the path of the ledger file.
pub(crate) fn ledger(home: &Path) -> PathBuf {
    home.join("ledger.db")
}

/// Returns the path of the event log.
pub(crate) fn event_log(home: &Path) -> PathBuf {
    home.join("events.db")
}

/// Returns the directory for the process provider's sandboxes.
pub(crate) fn sandboxes(home: &Path) -> PathBuf {
    home.join("sandboxes")
}

/// Creates a directory that only this user may access, if it is missing.
pub fn make_private_directory(home: &Path) -> io::Result<()> {
    if home.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home)
}
