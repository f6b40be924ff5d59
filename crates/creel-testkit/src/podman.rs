//! A private Podman service: the other engine with Docker's API.
//!
//! It has its own storage, run root, configuration and network namespace below one directory, so it
//! conflicts neither with the machine's Podman nor with our Docker Engine.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::engine::{Engine, path_with_sbin, temporary_directory};
use crate::inventory::{Inventory, Kind};
use crate::wait::eventually;
use crate::{image, leftovers};

/// The time limit for the service to answer.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running Podman service. It ends on drop.
#[derive(Debug)]
pub struct Podman {
    directory: PathBuf,
    service: Child,
}

impl Podman {
    /// Starts a service, and imports the test image into it.
    ///
    /// # Errors
    ///
    /// Fails when the service does not start with any storage driver.
    pub fn start() -> Result<Self> {
        // Overlay does not work on top of overlay. vfs works everywhere, but is slower.
        Self::start_with("overlay").or_else(|first| {
            Self::start_with("vfs").with_context(|| format!("overlay failed as well: {first:#}"))
        })
    }

    /// Returns the service's address.
    pub fn engine(&self) -> Engine {
        Engine::at(self.directory.join("podman.sock"))
    }

    fn start_with(driver: &str) -> Result<Self> {
        let directory = temporary_directory()?;
        configure(&directory)?;
        let log = File::create(directory.join("podman.log"))?;
        let service = Command::new("unshare")
            .args(["--net", "podman", "--storage-driver", driver])
            .args(["--root", &below(&directory, "root"), "--runroot", &below(&directory, "run")])
            .args(["--tmpdir", &below(&directory, "tmp")])
            .args(["--network-config-dir", &below(&directory, "net")])
            .args(["system", "service", "--time", "0"])
            .arg(format!("unix://{}", below(&directory, "podman.sock")))
            .env("CONTAINERS_CONF", directory.join("containers.conf"))
            .env("PATH", path_with_sbin())
            // Imported archives stay in the temporary directory.
            .env("TMPDIR", &directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot run unshare (package util-linux)")?;
        // From here on, a failure drops the service and ends it.
        let podman = Self { directory, service };
        podman.await_response()?;
        image::import(&podman.engine().api())?;
        Ok(podman)
    }

    fn await_response(&self) -> Result<()> {
        if eventually(START_DEADLINE, || self.engine().answers()) {
            return Ok(());
        }
        let log = fs::read_to_string(self.directory.join("podman.log")).unwrap_or_default();
        bail!("podman does not answer (package podman); its log:\n{log}");
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let docker = self.engine().docker();
        // Removed by Podman itself, so that its network plugins clean up.
        let containers =
            Inventory::snapshot(&self.engine()).map(|all| all.of_kind(Kind::Container));
        for id in containers.unwrap_or_default().ids() {
            let _ = docker.remove_container(&id);
        }
        let _ = self.service.kill();
        let _ = self.service.wait();
        // Whatever stays is below the suite's engine, and is cleared with it.
        let _ = leftovers::clear(&self.directory);
    }
}

fn configure(directory: &Path) -> Result<()> {
    // Works without systemd and journal. The default limits exceed what a restricted root may set.
    // The init is the one from docker.io.
    let text = "[containers]\n\
                default_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
                [engine]\n\
                init_path = \"/usr/bin/docker-init\"\n\
                cgroup_manager = \"cgroupfs\"\n\
                events_logger = \"file\"\n";
    fs::write(directory.join("containers.conf"), text).context("cannot write containers.conf")
}

fn below(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}
