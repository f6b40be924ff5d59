//! Where the workspace is, and the cargo that builds it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the workspace's root directory.
pub(crate) fn root() -> PathBuf {
    // Set by `cargo run`; a directly started program falls back to where it was built.
    let manifest = env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&manifest).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns a cargo command that runs in the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Returns the commit a report speaks of, marked when the work tree differs from it.
pub(crate) fn commit() -> String {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .current_dir(root())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}
