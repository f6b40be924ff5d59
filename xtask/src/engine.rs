//! The suite's engine, and one that a developer keeps running.
//!
//! Each workspace has its own two directories, so clones on one machine do not conflict, and a
//! suite does not end the engine that a developer uses.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};
use clap::Subcommand;
use creel_testkit::engine::PrivateEngine;
use creel_testkit::engine::{self, DIRECTORY_VARIABLE, Engine, EngineOptions, HOST_VARIABLE};
use creel_testkit::leftovers;

use crate::step::step;
use crate::{packages, workspace};

/// On disk on every Debian, and short: socket paths are limited to 108 bytes.
const PARENT: &str = "/var/tmp";

#[derive(Debug, Subcommand)]
pub(crate) enum Act {
    /// Start an engine and print how tests find it
    Start,
    /// Stop the engine and remove everything it kept
    Stop,
    /// Show whether the engine is running
    Status,
}

/// Starts, stops or checks the developer's engine.
pub(crate) fn run(act: &Act) -> Result<ExitCode> {
    let directory = directory("dev");
    match act {
        Act::Start => start(&directory),
        Act::Stop => engine::clear(&directory).map(|()| ExitCode::SUCCESS),
        Act::Status => {
            let up = leftovers::any_daemon(&directory) && address(&directory).answers();
            println!("{}", if up { "running" } else { "stopped" });
            Ok(if up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn start(directory: &Path) -> Result<ExitCode> {
    step("packages", packages::install_missing)?;
    if !address(directory).answers() {
        step("engine", || Ok(start_in(directory, EngineOptions::default())?.detach()))?;
    }
    println!("\nexport {HOST_VARIABLE}={}", address(directory).host());
    println!("export {DIRECTORY_VARIABLE}={}", directory.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs a closure with a fresh engine, and stops the engine whatever the result.
pub(crate) fn with_engine<T>(act: impl FnOnce(&mut PrivateEngine) -> Result<T>) -> Result<T> {
    let directory = directory("run");
    let options = EngineOptions { end_orphaned_tests: true, ..EngineOptions::default() };
    let mut engine = step("engine start", || start_in(&directory, options))?;
    // If the closure panics, the drop of the engine stops it too.
    let result = act(&mut engine);
    let stopped = step("engine stop", || engine.stop());
    let value = result?;
    stopped?;
    Ok(value)
}

/// Sets the variables that lead a command to the engine.
pub(crate) fn point<'a>(command: &'a mut Command, engine: &PrivateEngine) -> &'a mut Command {
    command
        .env(HOST_VARIABLE, engine.engine().host())
        .env(DIRECTORY_VARIABLE, engine.directory())
        // No test may fall back to the machine's own engine.
        .env_remove("DOCKER_HOST")
        .env_remove("DOCKER_CONTEXT")
}

fn start_in(directory: &Path, options: EngineOptions) -> Result<PrivateEngine> {
    if !rustix::process::geteuid().is_root() {
        bail!("a private Docker Engine needs root: run this chore as root");
    }
    PrivateEngine::start(directory, options)
}

fn address(directory: &Path) -> Engine {
    Engine::at(directory.join("docker.sock"))
}

fn directory(purpose: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    workspace::root().hash(&mut hasher);
    let workspace = format!("{:016x}", hasher.finish());
    Path::new(PARENT).join(format!("creel-{purpose}-{}", &workspace[..8]))
}
