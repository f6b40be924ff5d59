//! Checks the dependencies with cargo-deny.

use std::process::{ExitCode, Stdio};

use anyhow::{Result, bail};

use crate::step::step;
use crate::{child, workspace};

/// Checks bans, licenses and sources; advisories would need the network.
pub(crate) fn run() -> Result<ExitCode> {
    let mut probe = workspace::cargo(&["deny", "--version"]);
    let found = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        bail!("cargo-deny is not installed: run `cargo install --locked cargo-deny` first");
    }
    step("deny", || {
        child::run(&mut workspace::cargo(&["deny", "check", "bans", "licenses", "sources"]))
    })?;
    Ok(ExitCode::SUCCESS)
}
