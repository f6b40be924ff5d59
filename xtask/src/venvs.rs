//! Python programs that the suite is tested against, each in a virtual environment.
//!
//! The official Daytona SDKs prove that the local server is faithful. Docker clients and a harness
//! prove that a guard changes nothing. The suite installs exactly these versions, once per
//! workspace. Tests find them by environment variables.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{child, workspace};

/// A virtual environment that tests use.
struct Venv {
    /// The name of the directory.
    name: &'static str,
    requirements: &'static [&'static str],
    /// The variable that holds its directory for tests.
    variable: &'static str,
    /// The oldest supported Python, as the minor version after 3.
    oldest: u32,
}

const VENVS: [Venv; 4] = [
    Venv {
        name: "daytona-0.190.0",
        requirements: &["daytona==0.190.0"],
        variable: "CREEL_TEST_SDK_0_190",
        oldest: 9,
    },
    Venv {
        name: "daytona-0.226.1",
        requirements: &["daytona==0.226.1"],
        variable: "CREEL_TEST_SDK_0_226",
        oldest: 9,
    },
    Venv {
        name: "docker-7.2.0",
        requirements: &["docker==7.2.0", "testcontainers==4.15.0"],
        variable: "CREEL_TEST_DOCKER_PY",
        oldest: 10,
    },
    Venv {
        name: "harbor-0.24.0",
        requirements: &["harbor==0.24.0"],
        variable: "CREEL_TEST_HARBOR",
        oldest: 12,
    },
];

/// Returns the Python that has the newest of the official Daytona SDKs.
pub(crate) fn newest_sdk() -> PathBuf {
    let [_, newest, ..] = &VENVS;
    newest.directory().join("bin/python")
}

/// The newest Python to search for.
const NEWEST: u32 = 14;

/// The file that marks a finished installation.
const FINISHED: &str = "creel-finished";

impl Venv {
    fn directory(&self) -> PathBuf {
        workspace::target().join("xtask/venvs").join(self.name)
    }

    fn is_finished(&self) -> bool {
        self.directory().join(FINISHED).exists()
    }

    /// Finds a Python that is new enough.
    fn python(&self) -> Result<PathBuf> {
        let usual = PathBuf::from("python3");
        if minor_version(&usual).is_some_and(|minor| minor >= self.oldest) {
            return Ok(usual);
        }
        let found = (self.oldest..=NEWEST).find_map(|minor| {
            let by_name = PathBuf::from(format!("python3.{minor}"));
            let managed = managed_python(minor);
            [Some(by_name), managed]
                .into_iter()
                .flatten()
                .find(|it| minor_version(it) == Some(minor))
        });
        let Some(found) = found else {
            bail!(
                "{} needs Python 3.{} or newer, and there is none in the path or in pyenv; \
                 install one: pyenv install 3.{}",
                self.name,
                self.oldest,
                self.oldest
            );
        };
        Ok(found)
    }
}

/// Returns the minor version of a Python that can create virtual environments.
fn minor_version(python: &Path) -> Option<u32> {
    let mut probe = Command::new(python);
    probe.args(["-c", "import ensurepip, venv, sys; print(sys.version_info.minor)"]);
    let output = probe.stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Returns the Python of a minor version that pyenv keeps outside of `PATH`.
fn managed_python(minor: u32) -> Option<PathBuf> {
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".pyenv")))?;
    let versions = fs::read_dir(root.join("versions")).ok()?.flatten();
    let wanted = format!("3.{minor}.");
    let fits = |name: &str| name.starts_with(&wanted);
    versions
        .filter(|entry| entry.file_name().to_str().is_some_and(fits))
        .map(|entry| entry.path().join("bin/python3"))
        .find(|python| python.exists())
}

/// Returns whether there is a Python that can create virtual environments.
pub(crate) fn has_venv() -> bool {
    minor_version(Path::new("python3")).is_some()
}

/// Installs the missing environments.
pub(crate) fn install_missing() -> Result<()> {
    VENVS.iter().filter(|venv| !venv.is_finished()).try_for_each(install)
}

fn install(venv: &Venv) -> Result<()> {
    let (directory, requirements) = (venv.directory(), venv.requirements.join(" "));
    println!("xtask: installing {requirements}");
    if directory.exists() {
        // A partial installation is useless.
        fs::remove_dir_all(&directory).context("cannot remove a half installation")?;
    }
    fs::create_dir_all(&directory).context("cannot make the virtual environment")?;
    child::run(Command::new(venv.python()?).args(["-m", "venv"]).arg(&directory))?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    child::run(pip.args(venv.requirements)).with_context(|| {
        format!("{requirements} cannot be installed from PyPI; the suite proves itself against it")
    })?;
    fs::write(directory.join(FINISHED), "").context("cannot finish the virtual environment")
}

/// Sets the variables that lead a command to the environments.
pub(crate) fn point(command: &mut Command) -> &mut Command {
    command.envs(VENVS.iter().map(|venv| (venv.variable, venv.directory())))
}
