//! The benchmarks, each against one fresh engine.
//!
//! A new one is a module with `fn run(&PrivateEngine) -> Result<()>` and a row
//! in [`BENCHES`].

use std::process::ExitCode;

use anyhow::{Result, bail};
use creel_testkit::engine::PrivateEngine;

use crate::step::step;
use crate::{engine, packages};

/// A benchmark that can be asked for by name.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&PrivateEngine) -> Result<()>,
}

const BENCHES: &[Bench] = &[];

/// Runs the named benchmark, or lists them.
pub(crate) fn run(name: Option<&str>) -> Result<ExitCode> {
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
    engine::with_engine(|engine| step(bench.name, || (bench.run)(engine)))?;
    Ok(ExitCode::SUCCESS)
}
