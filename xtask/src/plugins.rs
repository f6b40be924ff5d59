//! Compose and Buildx for the docker CLI, in the suite's own configuration directory.
//!
//! Debian 12 has neither. They come from Debian 13's packages, fetched from the archive that this
//! machine uses, and unpacked without being installed: nothing on the machine changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{archive, child, workspace};

/// The release that has both packages.
const RELEASE: &str = "trixie";
const PACKAGES: [&str; 2] = ["docker-compose", "docker-buildx"];
/// The directory in which Debian installs CLI plugins.
const PLUGINS: &str = "usr/libexec/docker/cli-plugins";
/// The keyring for Debian's signatures.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The variable that holds the configuration directory for tests.
const VARIABLE: &str = "CREEL_TEST_DOCKER_CONFIG";

/// Installs the plugins if they are missing.
pub(crate) fn install_missing() -> Result<()> {
    if configuration().exists() {
        return Ok(());
    }
    println!("xtask: fetching {} of Debian {RELEASE}", PACKAGES.join(" and "));
    let directory = workspace::target().join("xtask/plugins");
    if directory.exists() {
        // A partial download is useless.
        fs::remove_dir_all(&directory).context("cannot remove a half fetch")?;
    }
    fetch(&directory).with_context(|| {
        format!("{} cannot be fetched; a guard is proven with them", PACKAGES.join(" and "))
    })?;
    unpack(&directory)
}

/// Sets the variable that leads a command to the plugins.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, configuration())
}

/// Returns the configuration directory of the CLI, which exists only when it is complete.
fn configuration() -> PathBuf {
    workspace::target().join("xtask/docker-config")
}

/// Downloads the packages with separate package lists.
fn fetch(directory: &Path) -> Result<()> {
    for part in ["state/lists/partial", "cache/archives/partial", "packages"] {
        fs::create_dir_all(directory.join(part))?;
    }
    let sources = directory.join("sources.list");
    let source = format!("deb [signed-by={KEYRING}] {} {RELEASE} main\n", archive::address()?);
    fs::write(&sources, source)?;
    let option = |name: &str, value: &Path| format!("{name}={}", value.display());
    let options = [
        option("Dir::Etc::SourceList", &sources),
        option("Dir::Etc::SourceParts", Path::new("/dev/null")),
        option("Dir::State", &directory.join("state")),
        option("Dir::State::Status", Path::new("/dev/null")),
        option("Dir::Cache", &directory.join("cache")),
        // apt's unprivileged download user may not enter the workspace.
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::Languages=none".to_owned(),
    ];
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.arg("--quiet").args(options.iter().flat_map(|option| ["-o", option]));
        child::run(command.args(args).current_dir(directory.join("packages")))
    };
    apt(&["update"])?;
    apt(&[&["download"], &PACKAGES[..]].concat())
}

fn unpack(directory: &Path) -> Result<()> {
    let root = directory.join("root");
    for entry in fs::read_dir(directory.join("packages"))? {
        child::run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(&root))?;
    }
    let complete = directory.join("config");
    fs::create_dir_all(complete.join("cli-plugins"))?;
    for plugin in PACKAGES {
        let program = root.join(PLUGINS).join(plugin);
        if !program.exists() {
            bail!("the package {plugin} has no {PLUGINS}/{plugin}");
        }
        symlink(program, complete.join("cli-plugins").join(plugin))?;
    }
    fs::rename(complete, configuration()).context("cannot finish the CLI's configuration")
}
