//! Builds `creel-bridge`, the static program for sandboxes, and hands it to `src/bridge.rs`.
//!
//! It is a build of its own: for an explicit target, because only then do flags
//! for static linking spare build scripts and macros, and in a target directory
//! of its own, because the one of the outer build is locked by it.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use sha2::{Digest, Sha256};

/// The profile in the workspace's manifest: small before fast.
const PROFILE: &str = "bridge";
/// Links the C library in.
const STATIC: &str = "-Ctarget-feature=+crt-static";
/// What the outer build sets for itself, and what must not reach the inner one: `clippy` and
/// `check` put themselves before the compiler, and flags such as `-Ctarget-cpu=native` or those
/// of a coverage run make a program that does not run elsewhere.
const NOT_INHERITED: [&str; 6] = [
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

fn main() -> ExitCode {
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), Box<dyn Error>> {
    let workspace = workspace()?;
    for source in
        ["crates/creel-bridge/src", "crates/creel-bridge/Cargo.toml", "Cargo.lock", "Cargo.toml"]
    {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let target = env::var("TARGET")?;
    let directory = target_directory()?;
    build(&workspace, &target, &directory)?;
    let built = directory.join(&target).join(PROFILE).join("creel-bridge");
    // A copy, so that what is built in is what the digest was made of, whoever builds meanwhile.
    let bytes = fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    let copy = PathBuf::from(env::var("OUT_DIR")?).join("creel-bridge");
    fs::write(&copy, &bytes)?;
    println!("cargo::rustc-env=CREEL_BRIDGE_PROGRAM={}", copy.display());
    println!("cargo::rustc-env=CREEL_BRIDGE_DIGEST={}", digest(&bytes));
    Ok(())
}

fn workspace() -> Result<PathBuf, Box<dyn Error>> {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    Ok(manifest.ancestors().nth(2).ok_or("this crate is in a workspace")?.to_owned())
}

/// Returns the target directory of the inner build: beside the profiles of the outer one, so that
/// all of them share it.
fn target_directory() -> Result<PathBuf, Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().find(|above| above.ends_with("build")).and_then(Path::parent);
    Ok(match profile.and_then(Path::parent) {
        Some(target) => target.join("creel-bridge"),
        None => out.join("target"),
    })
}

fn build(workspace: &Path, target: &str, directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--package", "creel-bridge", "--bin", "creel-bridge"])
        // The outer build has fetched the very same dependencies already.
        .args(["--locked", "--offline", "--profile", PROFILE, "--target", target, "--target-dir"])
        .arg(directory)
        .env("CARGO_ENCODED_RUSTFLAGS", STATIC);
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    let output = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("creel-bridge, the static program for sandboxes, cannot be built:\n{said}").into())
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
