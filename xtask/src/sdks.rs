//! The official Daytona SDKs, each in a virtual environment of its own.
//!
//! They are the witnesses that the local server is faithful, so the suite
//! installs exactly these versions, once per workspace; tests find them by
//! variables of the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{child, workspace};

/// An SDK that tests use.
struct Sdk {
    version: &'static str,
    /// The variable that tells tests where its virtual environment is.
    variable: &'static str,
}

const SDKS: [Sdk; 2] = [
    Sdk { version: "0.190.0", variable: "CREEL_TEST_SDK_0_190" },
    Sdk { version: "0.226.1", variable: "CREEL_TEST_SDK_0_226" },
];

/// The file that says an installation was finished.
const FINISHED: &str = "creel-finished";

impl Sdk {
    fn requirement(&self) -> String {
        format!("daytona=={}", self.version)
    }

    fn directory(&self) -> PathBuf {
        workspace::target().join("xtask/venvs").join(format!("daytona-{}", self.version))
    }

    fn is_finished(&self) -> bool {
        self.directory().join(FINISHED).exists()
    }
}

/// Returns whether there is a python that can make virtual environments.
pub(crate) fn has_venv() -> bool {
    let mut probe = Command::new("python3");
    probe.args(["-c", "import ensurepip, venv"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Installs the SDKs that are missing.
pub(crate) fn install_missing() -> Result<()> {
    SDKS.iter().filter(|sdk| !sdk.is_finished()).try_for_each(install)
}

fn install(sdk: &Sdk) -> Result<()> {
    let (directory, requirement) = (sdk.directory(), sdk.requirement());
    println!("xtask: installing {requirement}");
    if directory.exists() {
        // An installation that was cut off is of no use.
        fs::remove_dir_all(&directory).context("cannot remove a half installation")?;
    }
    fs::create_dir_all(&directory).context("cannot make the virtual environment")?;
    child::run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &requirement]);
    child::run(&mut pip).with_context(|| {
        format!("{requirement} cannot be installed from PyPI; the suite proves itself against it")
    })?;
    finish(&directory)
}

fn finish(directory: &Path) -> Result<()> {
    fs::write(directory.join(FINISHED), "").context("cannot finish the virtual environment")
}

/// Returns the python that has the newest of the SDKs.
pub(crate) fn newest_python() -> PathBuf {
    let [.., newest] = &SDKS;
    newest.directory().join("bin/python")
}

/// Tells a command where the SDKs are.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    command.envs(SDKS.iter().map(|sdk| (sdk.variable, sdk.directory())))
}
