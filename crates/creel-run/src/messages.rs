//! The texts of messages: each in a private file until it has reached the agent.
//!
//! ```text
//!   creel message ──▶ messages/<run>/<key> ──▶ owner ──▶ bridge
//!        │              (0600, in 0700)          │
//!        └──▶ orders (ledger): the key alone ────┘ removes the file, then closes the command
//! ```
//!
//! A message may contain a secret that only the owner of the run knows, so its
//! sender could not mask it. It must also reach the agent unchanged. So the
//! ledger never contains the text. The file is written before the command. It is
//! removed when the message was passed on, or at the end of its run. If the owner
//! dies in between, the next owner finds both. A crash between the two writes
//! leaves a file without a command, which is removed with its run.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use creel_ledger::{Ledger, LedgerError, make_private_directory};
use creel_model::id::RunId;
use secrecy::SecretString;
use tracing::warn;

fn all(home: &Path) -> PathBuf {
    home.join("messages")
}

fn of_run(home: &Path, run: RunId) -> PathBuf {
    all(home).join(run.to_string())
}

/// Saves the text of a message. It is on disk when this returns.
pub(super) fn save(home: &Path, run: RunId, key: &str, text: &str) -> io::Result<()> {
    let directory = of_run(home, run);
    make_private_directory(&all(home))?;
    make_private_directory(&directory)?;
    let draft = directory.join(format!(".{key}"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let placed = written.and_then(|()| fs::rename(&draft, directory.join(key)));
    if placed.is_err() {
        // A partial message is useless and must not stay.
        let _ = fs::remove_file(&draft);
    }
    placed?;
    fs::File::open(&directory)?.sync_all()
}

/// Reads the text of a message.
pub(super) fn read(home: &Path, run: RunId, key: &str) -> io::Result<SecretString> {
    fs::read_to_string(of_run(home, run).join(key)).map(SecretString::from)
}

/// Removes the text of a message that has reached the agent, or whose command was not placed.
pub(super) fn remove(home: &Path, run: RunId, key: &str) {
    report(fs::remove_file(of_run(home, run).join(key)));
}

/// Removes all texts of a run.
pub(crate) fn remove_all(home: &Path, run: RunId) {
    report(fs::remove_dir_all(of_run(home, run)));
}

fn report(removed: io::Result<()>) {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(%error, "the text of a message could not be removed");
        }
        _ => {}
    }
}

/// Removes the texts of runs that are over.
///
/// # Errors
///
/// Fails when the ledger cannot be read.
pub(crate) async fn remove_finished(ledger: &Ledger) -> Result<(), LedgerError> {
    let Ok(entries) = fs::read_dir(all(ledger.home())) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(run) = name.to_str().and_then(|name| name.parse::<RunId>().ok()) else { continue };
        let record = ledger.run(run).await?;
        if record.is_none_or(|record| record.state.phase.is_final()) {
            remove_all(ledger.home(), run);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_text_is_private_and_goes_with_its_run() {
        let home = tempfile::tempdir().unwrap();
        let run = RunId::new();
        save(home.path(), run, "message-1", "first").unwrap();
        save(home.path(), run, "message-2", "second").unwrap();
        let file = of_run(home.path(), run).join("message-1");
        for (path, mode) in [(file.parent().unwrap(), 0o700), (file.as_path(), 0o600)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(read(home.path(), run, "message-1").unwrap().expose_secret(), "first");
        remove(home.path(), run, "message-1");
        assert!(read(home.path(), run, "message-1").is_err());
        remove_all(home.path(), run);
        assert!(!of_run(home.path(), run).exists());
        remove_all(home.path(), run);
    }
}
