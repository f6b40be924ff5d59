//! Another kernel than this machine's, for a machine of its own.
//!
//! It comes from Debian's packages and is unpacked without installing: this
//! machine boots as before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{child, packages, workspace};

/// The package whose first dependency is the newest kernel.
const NEWEST: &str = "linux-image-amd64";
/// The variable that tells tests where it is.
const VARIABLE: &str = "CREEL_TEST_KERNEL";

/// Installs what is missing.
pub(crate) fn install_missing() -> Result<()> {
    packages::install_machine()?;
    if directory().exists() {
        return Ok(());
    }
    let half = workspace::target().join("xtask/half-kernel");
    if half.exists() {
        // A fetch that was cut off is of no use.
        fs::remove_dir_all(&half).context("cannot remove a half fetch")?;
    }
    fetch(&half).context("no kernel can be fetched; reboots are proven with one")?;
    fs::rename(half, directory()).context("cannot finish the kernel")
}

/// Tells a command where it is.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, directory())
}

/// Where the kernel is; it exists only when it is complete.
fn directory() -> PathBuf {
    workspace::target().join("xtask/kernel")
}

fn fetch(directory: &Path) -> Result<()> {
    let packages = directory.join("packages");
    fs::create_dir_all(&packages)?;
    // The unprivileged user that downloads otherwise may not enter the workspace.
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
