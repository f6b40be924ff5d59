//! Work that is done with and without the guard.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use creel_testkit::docker::{ContainerSpec, concurrently};
use creel_testkit::engine::Engine;
use creel_testkit::image;

use super::stage::GuardStage;

/// The number of containers in a lifecycle, and how many run at a time.
const CONTAINERS: usize = 100;
const WORKERS: usize = 8;
/// The number of bytes that a load and a build transfer.
const BYTES: usize = 500_000_000;
/// The number of pings on each path.
const PINGS: usize = 1000;
/// The name of the loaded and built images.
const IMAGE: &str = "creel-bench-guard:big";

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Create, start and remove containers.
    Lifecycle,
    /// `docker load`.
    Load,
    /// `docker build` by the engine itself.
    Classic,
    /// `docker build` with BuildKit.
    BuildKit,
}

impl Work {
    pub(super) const ALL: [Self; 4] = [Self::Lifecycle, Self::Load, Self::Classic, Self::BuildKit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Load => "load",
            Self::Classic => "classic",
            Self::BuildKit => "buildkit",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Lifecycle => "100 × create, start, remove by 8 workers",
            Self::Load => "`docker load` of 500 MB",
            Self::Classic => "`docker build`, classic, 500 MB of context",
            Self::BuildKit => "`docker build`, BuildKit, 500 MB of context",
        }
    }

    /// Creates the files that the work needs; not measured.
    pub(super) fn prepare(self, stage: &GuardStage) -> Result<()> {
        let context = stage.directory().join("context");
        if self == Self::Lifecycle || context.join("data").exists() {
            return Ok(());
        }
        fs::create_dir_all(&context)?;
        fs::write(
            context.join("Dockerfile"),
            format!("FROM {}\nCOPY data /data\n", image::REFERENCE),
        )?;
        write_noise(&context.join("data"))?;
        docker(stage.engine(0), Self::Classic, &["build", "-q", "-t", IMAGE, path(&context)?])?;
        let archive = stage.directory().join("image.tar");
        docker(stage.engine(0), Self::Load, &["save", "-o", path(&archive)?, IMAGE])?;
        forget(stage)
    }

    /// Does the work once, and returns how long it took.
    pub(super) fn run(self, stage: &GuardStage, engine: &Engine) -> Result<Duration> {
        let context = stage.directory().join("context");
        let archive = stage.directory().join("image.tar");
        let started_at = Instant::now();
        match self {
            Self::Lifecycle => lifecycle(engine)?,
            Self::Load => docker(engine, self, &["load", "-q", "-i", path(&archive)?])?,
            Self::Classic | Self::BuildKit => {
                let args = ["build", "-q", "--no-cache", "-t", IMAGE, path(&context)?];
                docker(engine, self, &args)?;
            }
        }
        let took = started_at.elapsed();
        if self != Self::Lifecycle {
            forget(stage)?;
        }
        Ok(took)
    }
}

fn lifecycle(engine: &Engine) -> Result<()> {
    let docker = engine.docker();
    let names: Vec<String> = (0..CONTAINERS).map(|number| format!("life-{number}")).collect();
    let live = |name: &String| {
        let id = docker.run(&ContainerSpec::sleeping(name).network("none"))?;
        docker.remove_container(&id)
    };
    concurrently(&names, WORKERS, live).map(drop)
}

/// Removes the image, so that the next run creates it again.
fn forget(stage: &GuardStage) -> Result<()> {
    stage.engine(0).docker().remove_image(IMAGE)
}

/// Writes bytes that can be neither compressed nor deduplicated.
fn write_noise(path: &std::path::Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut noise = fastrand::Rng::with_seed(7);
    let mut block = vec![0; 1 << 20];
    for _ in 0..BYTES.div_ceil(block.len()) {
        noise.fill(&mut block);
        file.write_all(&block)?;
    }
    Ok(file.flush()?)
}

fn docker(engine: &Engine, work: Work, arguments: &[&str]) -> Result<()> {
    let buildkit = if work == Work::BuildKit { "1" } else { "0" };
    let output = Command::new(program(work)?)
        .args(arguments)
        .env("DOCKER_HOST", engine.host())
        .env("DOCKER_BUILDKIT", buildkit)
        .env_remove("DOCKER_CONTEXT")
        .output()
        .context("cannot run docker (package docker.io)")?;
    if !output.status.success() {
        bail!("docker {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Returns a docker CLI that can do the work. Newer ones need a plugin for BuildKit; the one from
/// the Debian package supports it by itself.
fn program(work: Work) -> Result<&'static str> {
    const PACKAGED: &str = "/usr/bin/docker";
    if work != Work::BuildKit {
        return Ok("docker");
    }
    let has_plugin = Command::new("docker").args(["buildx", "version"]).output();
    if has_plugin.is_ok_and(|output| output.status.success()) {
        return Ok("docker");
    }
    match fs::exists(PACKAGED) {
        Ok(true) => Ok(PACKAGED),
        _ => bail!("no docker here speaks BuildKit (package docker.io, or the plugin buildx)"),
    }
}

fn path(path: &std::path::Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// Sends many pings on both paths in turn, and returns the medians.
pub(super) fn pings(stage: &GuardStage) -> Result<[Duration; 2]> {
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..PINGS {
        for (variant, figures) in figures.iter_mut().enumerate() {
            let started_at = Instant::now();
            stage.engine(variant).api().request("GET", "/_ping", None)?;
            figures.push(started_at.elapsed());
        }
    }
    Ok(figures.map(|mut figures| super::report::median(&mut figures)))
}
