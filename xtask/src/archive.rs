//! The package archive of this machine.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Returns the codename of this machine's Debian release.
pub(crate) fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("this machine's release has no name: it must be a Debian")?;
    Ok(codename.trim_matches('"').to_owned())
}

/// Returns the address of this machine's Debian archive.
pub(crate) fn address() -> Result<String> {
    let codename = codename()?;
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Component: main"]);
    let output = command.output().context("cannot run apt-get")?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = format!("{codename} ");
    match listed.lines().find_map(|line| line.strip_prefix(&wanted)) {
        Some(address) => Ok(address.to_owned()),
        None => bail!("apt has no source for {codename}/main to take the archive's address from"),
    }
}
