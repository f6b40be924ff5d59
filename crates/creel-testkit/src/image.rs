//! The image every test container runs: busybox and its links, nothing else.
//!
//! No registry is reachable from the tests, so the image is made of the
//! machine's own static busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::api::escape;
use crate::engine::Engine;

/// The image's repository.
pub const REPOSITORY: &str = "creel-test";
/// The image's reference.
pub const REFERENCE: &str = "creel-test:latest";

/// Imports the test image into an engine.
///
/// # Errors
///
/// Fails when there is no static busybox or the engine refuses.
pub fn import(engine: &Engine) -> Result<()> {
    let path = format!(
        "/images/create?fromSrc=-&repo={REPOSITORY}&tag=latest&changes={}",
        escape("CMD [\"sh\"]")
    );
    let answer = engine.api().send("POST", &path, "application/x-tar", &archive()?)?;
    // The engine answers 200 first and tells of a failure in the stream.
    let text = answer.text();
    if !answer.is_success() || text.contains("\"error\"") {
        bail!("the engine did not import the test image: {} {text}", answer.status);
    }
    Ok(())
}

/// Returns the root file system as a tar archive.
///
/// # Errors
///
/// Fails when there is no static busybox.
pub fn archive() -> Result<Vec<u8>> {
    let root = tempfile::tempdir().context("cannot make a temporary directory")?;
    lay_out(root.path())?;
    let output = Command::new("tar")
        .args(["--create", "--numeric-owner", "--owner=0", "--group=0", "--directory"])
        .arg(root.path())
        .arg(".")
        .output()
        .context("cannot run tar")?;
    if !output.status.success() {
        bail!("tar failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

fn lay_out(root: &Path) -> Result<()> {
    for directory in ["bin", "etc", "proc", "root", "tmp"] {
        fs::create_dir(root.join(directory))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    let busybox = Path::new("/bin/busybox");
    fs::copy(busybox, root.join("bin/busybox"))
        .context("cannot copy /bin/busybox (package busybox-static)")?;
    let list = Command::new(busybox).arg("--list").output().context("cannot run busybox")?;
    for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    Ok(())
}
