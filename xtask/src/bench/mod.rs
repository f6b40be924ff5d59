//! The benchmarks, each against one fresh engine.
//!
//! A new one is a module with `fn run(&PrivateEngine, &Effort) -> Result<()>`
//! and a row in [`BENCHES`].

mod machine;
mod memory;
mod report;
mod sweep;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use creel_testkit::engine::PrivateEngine;

use crate::step::step;
use crate::{child, engine, packages, workspace};

/// A benchmark that can be asked for by name.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&PrivateEngine, &Effort) -> Result<()>,
}

const BENCHES: &[Bench] = &[Bench {
    name: "sweep",
    about: "releasing containers, networks and volumes, against the CLI and the raw API",
    run: sweep::run,
}];

/// How much is measured.
#[derive(Debug, Args)]
pub(crate) struct Effort {
    /// How often each way is measured; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure one part only (running, exited, mixed, memory); the committed results then stay as they are
    #[arg(long)]
    only: Option<String>,
    /// Measure this binary, such as an older one, instead of a fresh release build
    #[arg(long)]
    binary: Option<PathBuf>,
}

impl Effort {
    /// Returns the binary to measure.
    fn binary(&self) -> PathBuf {
        let built = || workspace::target().join("release/creel");
        self.binary.clone().unwrap_or_else(built)
    }
}

/// Runs the named benchmark, or lists them.
pub(crate) fn run(name: Option<&str>, effort: &Effort) -> Result<ExitCode> {
    let Some(name) = name else {
        for bench in BENCHES {
            println!("{:<12} {}", bench.name, bench.about);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        bail!("no benchmark {name}: `cargo xtask bench` lists them");
    };
    step("packages", packages::install_missing)?;
    if effort.binary.is_none() {
        step("release build", || {
            child::run(&mut workspace::cargo(&["build", "--release", "--package", "creel"]))
        })?;
    }
    engine::with_engine(|engine| step(bench.name, || (bench.run)(engine, effort)))?;
    Ok(ExitCode::SUCCESS)
}
