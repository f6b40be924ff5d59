//! Repositories to clone from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The minimum size of a repository's pack, so that a cut falls into the middle of it.
const WEIGHT: usize = 1024 * 1024;

/// A bare repository with a known history.
///
/// `main` has two commits, the tag `v1` is at the first of them, and the branch `side` has its own
/// commit. The branch `twin` points to the same commit as `side`, and the tag `twin` to the same as
/// `v1`.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The path on this machine.
    pub path: PathBuf,
    /// The first commit, tagged `v1`.
    pub first: String,
    /// The newest commit of `main`.
    pub main: String,
    /// The newest commit of `side`.
    pub side: String,
    /// A commit that no branch and no tag contains, only `refs/pull/1/head`.
    pub proposed: String,
}

impl Origin {
    /// Creates a repository at a path.
    ///
    /// # Errors
    ///
    /// Fails when git does.
    pub fn make(path: &Path) -> Result<Self> {
        let work = path.with_extension("work");
        fs::create_dir_all(&work)?;
        git(&work, &["init", "-q", "-b", "main"])?;
        fs::write(work.join("weight"), noise())?;
        let first = commit(&work, "one")?;
        git(&work, &["tag", "-a", "-m", "v1", "v1"])?;
        let main = commit(&work, "two")?;
        git(&work, &["checkout", "-q", "-b", "side", "v1"])?;
        let side = commit(&work, "three")?;
        git(&work, &["branch", "twin"])?;
        git(&work, &["tag", "twin", "v1"])?;
        git(&work, &["checkout", "-q", "--detach"])?;
        let proposed = commit(&work, "four")?;
        git(&work, &["update-ref", "refs/pull/1/head", "HEAD"])?;
        git(&work, &["checkout", "-q", "main"])?;
        let place = path.display().to_string();
        git(&work, &["clone", "-q", "--bare", ".", &place])?;
        git(&work, &["push", "-q", &place, "refs/pull/1/head"])?;
        // As the large hosting services do.
        git(path, &["config", "uploadpack.allowReachableSHA1InWant", "true"])?;
        fs::remove_dir_all(&work)?;
        Ok(Self { path: path.to_owned(), first, main, side, proposed })
    }

    /// Creates a repository without a commit.
    ///
    /// # Errors
    ///
    /// Fails when git does.
    pub fn make_empty(path: &Path) -> Result<()> {
        fs::create_dir_all(path)?;
        git(path, &["init", "-q", "--bare", "-b", "main"]).map(drop)
    }
}

/// Adds a commit with a file of that name, and returns the commit id.
fn commit(work: &Path, name: &str) -> Result<String> {
    fs::write(work.join(name), name)?;
    git(work, &["add", "."])?;
    git(work, &["commit", "-q", "-m", name])?;
    git(work, &["rev-parse", "HEAD"])
}

/// Returns bytes that cannot be compressed.
fn noise() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..)).take(WEIGHT).collect()
}

/// Runs git without any user or system settings, and returns its output.
fn git(directory: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(directory)
        .envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .envs([("GIT_AUTHOR_NAME", "Someone"), ("GIT_AUTHOR_EMAIL", "someone@example.org")])
        .envs([("GIT_COMMITTER_NAME", "Someone"), ("GIT_COMMITTER_EMAIL", "someone@example.org")])
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
