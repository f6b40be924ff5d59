//! Everything the tests need besides an engine.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::step::step;
use crate::{packages, plugins, rootfs, venvs};

/// Installs what is missing.
pub(crate) fn install_missing() -> Result<()> {
    step("packages", packages::install_missing)?;
    step("python", venvs::install_missing)?;
    step("plugins", plugins::install_missing)?;
    step("debian", rootfs::install_missing)
}

/// Tells a command where the parts are.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    rootfs::point(plugins::point(venvs::point(command)))
}

/// Installs what is missing, and prints how tests find it.
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
