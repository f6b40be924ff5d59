//! A small Debian root file system, for harnesses whose images need more than busybox.
//!
//! The tests cannot reach a registry, so they import it into their engines.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{archive, child, workspace};

/// The variable that holds the path of the archive for tests.
const VARIABLE: &str = "CREEL_TEST_DEBIAN";

/// Creates the archive once per workspace.
pub(crate) fn install_missing() -> Result<()> {
    if path().exists() {
        return Ok(());
    }
    let (release, directory) = (archive::codename()?, workspace::target().join("xtask/debian"));
    println!("xtask: making a root file system of Debian {release}");
    if directory.exists() {
        // A partial root file system is useless.
        fs::remove_dir_all(&directory).context("cannot remove half a root file system")?;
    }
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &release]).arg(&directory).arg(archive::address()?);
    child::run(debootstrap.env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"))
        .context("Debian cannot be unpacked; a harness is proven with it")?;
    let unfinished = path().with_extension("new");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--numeric-owner", "--exclude=./var/cache/apt", "--file"]);
    child::run(tar.arg(&unfinished).arg("--directory").arg(&directory).arg("."))?;
    fs::remove_dir_all(&directory).context("cannot remove the unpacked root file system")?;
    fs::rename(unfinished, path()).context("cannot finish the root file system")
}

/// Sets the variable that leads a command to the archive.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, path())
}

fn path() -> PathBuf {
    workspace::target().join("xtask/debian.tar")
}
