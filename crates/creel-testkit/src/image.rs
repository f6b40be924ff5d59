//! The images of test containers: busybox and its links, and the same with git.
//!
//! The tests cannot reach a registry, so the images are built from this machine's own programs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::api::{Api, escape};

/// The image's repository.
pub const REPOSITORY: &str = "creel-test";
/// The image's reference.
pub const REFERENCE: &str = "creel-test:latest";

/// The reference of the image with git.
pub const WITH_GIT: &str = "creel-test-git:latest";
/// The directory of git's own programs on Debian.
const GIT_PROGRAMS: &str = "/usr/lib/git-core";

/// Imports the test image into an engine.
///
/// # Errors
///
/// Fails when there is no static busybox or the engine refuses.
pub fn import(api: &Api) -> Result<()> {
    send(api, REPOSITORY, &archive()?)
}

/// Imports the image with git into an engine.
///
/// # Errors
///
/// Fails when a part of it is missing or the engine refuses.
pub fn import_with_git(api: &Api) -> Result<()> {
    let root = tempfile::tempdir().context("cannot make a temporary directory")?;
    lay_out(root.path())?;
    lay_out_git(root.path())?;
    let repository = WITH_GIT.trim_end_matches(":latest");
    send(api, repository, &packed(root.path())?)
}

fn send(api: &Api, repository: &str, archive: &[u8]) -> Result<()> {
    let path = format!(
        "/images/create?fromSrc=-&repo={repository}&tag=latest&changes={}",
        escape("CMD [\"sh\"]")
    );
    let response = api.send("POST", &path, "application/x-tar", archive)?;
    // The engine answers 200 first, and reports a failure in the stream.
    let text = response.text();
    if !response.is_success() || text.contains("\"error\"") {
        bail!("the engine did not import {repository}: {} {text}", response.status);
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
    packed(root.path())
}

fn packed(root: &Path) -> Result<Vec<u8>> {
    let output = Command::new("tar")
        .args(["--create", "--numeric-owner", "--owner=0", "--group=0", "--directory"])
        .arg(root)
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

/// Adds git as Debian packages it, its HTTP helpers, and all libraries they need.
fn lay_out_git(root: &Path) -> Result<()> {
    let programs = ["git", "git-remote-http", "git-remote-https"];
    let mut files: Vec<PathBuf> =
        programs.iter().map(|name| Path::new(GIT_PROGRAMS).join(name)).collect();
    for program in files.clone() {
        files.extend(libraries_of(&program)?);
    }
    for file in files {
        let place = root.join(file.strip_prefix("/")?);
        fs::create_dir_all(place.parent().context("a file has a directory")?)?;
        // Copying follows links, so each name gets the file's content.
        fs::copy(&file, &place).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    symlink(Path::new(GIT_PROGRAMS).join("git"), root.join("bin/git"))?;
    Ok(())
}

/// Returns the libraries of a program, and their loader.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    if !output.status.success() {
        bail!("ldd does not know {} (package git)", program.display());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_path = |part: &&str| part.starts_with('/');
    Ok(text.split_whitespace().filter(is_path).map(PathBuf::from).collect())
}
