//! Installs what the suite needs from Debian's packages.
//!
//! Installs nothing when everything is present, and starts no service: the suite runs its own
//! daemons, and another one would conflict with them.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{child, venvs};

/// Something the suite needs, and the package that provides it.
struct Part {
    /// A program's name, or an absolute path.
    file: &'static str,
    package: &'static str,
}

const PARTS: [Part; 17] = [
    Part { file: "dockerd", package: "docker.io" },
    Part { file: "docker", package: "docker.io" },
    Part { file: "iptables", package: "iptables" },
    Part { file: "git", package: "git" },
    Part { file: "/bin/busybox", package: "busybox-static" },
    Part { file: "podman", package: "podman" },
    Part { file: "/usr/lib/cni/bridge", package: "containernetworking-plugins" },
    Part { file: "sshd", package: "openssh-server" },
    Part { file: "ssh", package: "openssh-client" },
    Part { file: "ssh-keygen", package: "openssh-client" },
    Part { file: "/etc/ssl/certs/ca-certificates.crt", package: "ca-certificates" },
    Part { file: "nsenter", package: "util-linux" },
    Part { file: "python3", package: "python3-venv" },
    Part { file: "debootstrap", package: "debootstrap" },
    Part { file: "rg", package: "ripgrep" },
    Part { file: "mkfs.ext4", package: "e2fsprogs" },
    Part { file: "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", package: "libfaketime" },
];

/// The parts that only a virtual machine needs.
const MACHINE_PARTS: [Part; 2] = [
    Part { file: "qemu-system-x86_64", package: "qemu-system-x86" },
    Part { file: "mkfs.ext4", package: "e2fsprogs" },
];

/// The script that Debian runs to decide whether a freshly installed service may start.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs the missing packages.
pub(crate) fn install_missing() -> Result<()> {
    install(&PARTS)
}

/// Installs the additional packages for a virtual machine.
pub(crate) fn install_machine() -> Result<()> {
    install(&MACHINE_PARTS)
}

fn install(parts: &[Part]) -> Result<()> {
    let packages = missing(parts);
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    println!("xtask: installing {list}");
    let by_hand = format!("install by hand: apt-get install --no-install-recommends {list}");
    if !rustix::process::geteuid().is_root() {
        bail!("packages are missing and only root may install them; {by_hand}");
    }
    let guard = ServiceGuard::set()?;
    let installed = apt(&["update"]).and_then(|()| {
        let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
        arguments.extend(&packages);
        apt(&arguments)
    });
    drop(guard);
    installed.with_context(|| by_hand.clone())?;
    let missing = missing(parts);
    if !missing.is_empty() {
        bail!("still missing after the installation: {}; {by_hand}", missing.join(" "));
    }
    Ok(())
}

fn missing(parts: &[Part]) -> Vec<&'static str> {
    let mut packages: Vec<&str> =
        parts.iter().filter(|part| !is_there(part)).map(|part| part.package).collect();
    packages.dedup();
    packages
}

fn is_there(part: &Part) -> bool {
    if part.package == "busybox-static" {
        // Debian's other busybox is dynamic and would not run in an empty image.
        return fs::read(part.file).is_ok_and(|bytes| !contains(&bytes, b"/ld-linux"));
    }
    if part.package == "python3-venv" {
        return venvs::has_venv();
    }
    if part.file.starts_with('/') { Path::new(part.file).exists() } else { in_path(part.file) }
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(sbin).any(|directory| directory.join(program).is_file())
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    // Another installation may be running, such as the one of a fresh machine.
    command.args(["-o", "DPkg::Lock::Timeout=300"]);
    child::run(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Forbids new services to start for as long as it lives.
struct ServiceGuard {
    /// Whether this guard created the policy and must remove it.
    ours: bool,
}

impl ServiceGuard {
    fn set() -> Result<Self> {
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        // 101: action forbidden by policy.
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")
            .with_context(|| format!("cannot write {POLICY}"))?;
        let guard = Self { ours: true };
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(guard)
    }
}

impl Drop for ServiceGuard {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}
