//! Everything the tests need besides an engine.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::step::step;
use crate::{packages, plugins, rootfs, venvs};

/// Installs the missing parts.
pub(crate) fn install_missing() -> Result<()> {
    step("packages", packages::install_missing)?;
    step("python", venvs::install_missing)?;
    step("plugins", plugins::install_missing)?;
    step("debian", rootfs::install_missing)
}

/// Sets the variables that lead a command to the parts.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    rootfs::point(plugins::point(venvs::point(command)))
}

/// Installs the missing parts, and prints the variables by which tests find them.
pub(crate) fn run() -> Result<ExitCode> {
    install_missing()?;
    let mut command = Command::new("true");
    println!();
    for (variable, value) in point(&mut command).get_envs() {
        let value = value.unwrap_or_default();
        println!("export {}={}", variable.to_string_lossy(), value.to_string_lossy());
    }
    Ok(ExitCode::SUCCESS)
}
