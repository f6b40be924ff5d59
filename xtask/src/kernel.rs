//! A different kernel than this machine's, for a virtual machine.
//!
//! It comes from Debian's packages and is unpacked without being installed, so this machine boots
//! as before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{child, packages, workspace};

/// The package whose first dependency is the newest kernel.
const NEWEST: &str = "linux-image-amd64";
/// The variable that holds the kernel's directory for tests.
const VARIABLE: &str = "CREEL_TEST_KERNEL";

/// Installs the kernel if it is missing.
pub(crate) fn install_missing() -> Result<()> {
    packages::install_machine()?;
    if directory().exists() {
        return Ok(());
    }
    let half = workspace::target().join("xtask/half-kernel");
    if half.exists() {
        // A partial download is useless.
        fs::remove_dir_all(&half).context("cannot remove a half fetch")?;
    }
    fetch(&half).context("no kernel can be fetched; reboots are proven with one")?;
    fs::rename(half, directory()).context("cannot finish the kernel")
}

/// Sets the variable that leads a command to the kernel.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, directory())
}

/// Returns the directory of the kernel, which exists only when it is complete.
fn directory() -> PathBuf {
    workspace::target().join("xtask/kernel")
}

fn fetch(directory: &Path) -> Result<()> {
    let packages = directory.join("packages");
    fs::create_dir_all(&packages)?;
    // apt's unprivileged download user may not enter the workspace.
    let mut download = Command::new("apt-get");
    download.args(["--quiet", "-o", "APT::Sandbox::User=root", "download", &newest()?]);
    child::run(download.current_dir(&packages))?;
    for package in fs::read_dir(&packages)? {
        child::run(Command::new("dpkg-deb").arg("-x").arg(package?.path()).arg(directory))?;
    }
    Ok(())
}

fn newest() -> Result<String> {
    let output = Command::new("apt-cache").args(["depends", NEWEST]).output();
    let text = String::from_utf8(output.context("cannot run apt-cache")?.stdout)?;
    let first = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    first.map(str::to_owned).with_context(|| format!("Debian has no package {NEWEST}"))
}
