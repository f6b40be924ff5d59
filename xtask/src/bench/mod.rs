//! The benchmarks.
//!
//! A new one is a module with `fn run(&Effort) -> Result<()>`, a row in
//! [`BENCHES`], and a section of its own in `docs/benchmarks.md`.

mod build;
mod daytona;
mod guard;
pub(crate) mod machine;
mod memory;
mod methods;
pub(crate) mod page;
mod report;
mod sanitise;
mod sweep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::step::step;
use crate::{child, workspace};

/// A benchmark that can be selected by name.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&Effort) -> Result<()>,
    /// Whether it measures the program, not only a part of it.
    needs_creel: bool,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "sweep",
        about: "releasing containers, networks and volumes, against the CLI and the raw API",
        run: sweep::run,
        needs_creel: true,
    },
    Bench {
        name: "daytona",
        about: "releasing sandboxes under rate limits and faults, and against the official SDK",
        run: daytona::run,
        needs_creel: true,
    },
    Bench {
        name: "guard",
        about: "creating, loading, building and attaching through a guard, against directly",
        run: guard::run,
        needs_creel: true,
    },
    Bench {
        name: "build",
        about: "a fresh build and a check after a change, against an earlier tree",
        run: build::run,
        needs_creel: false,
    },
    Bench {
        name: "sanitise",
        about: "masking a large log, against ripgrep searching it for the same",
        run: sanitise::run,
        needs_creel: false,
    },
];

/// The number of sandboxes released under limits.
const COUNT: usize = 10_000;
/// The window of a limit, in seconds.
const WINDOW: u64 = 60;

/// How much is measured; the results are kept only when nothing but the rounds is given.
#[derive(Debug, Args)]
pub(crate) struct Effort {
    /// Measure each method this many times and report the median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure one part only: running, exited, mixed or memory of sweep, limits or sdk of daytona,
    /// lifecycle, load, classic, buildkit, small or crowd of guard, fresh or change of build
    #[arg(long)]
    only: Option<String>,
    /// Measure this binary, such as an older one, instead of a fresh release build
    #[arg(long)]
    binary: Option<PathBuf>,
    /// daytona: use this many sandboxes, and scale the limits with the number
    #[arg(long, default_value_t = COUNT)]
    count: usize,
    /// daytona: set the length of a limit window in seconds
    #[arg(long, default_value_t = WINDOW)]
    window: u64,
}

impl Effort {
    /// Returns the binary to measure.
    fn binary(&self) -> PathBuf {
        let built = || workspace::target().join("release/creel");
        self.binary.clone().unwrap_or_else(built)
    }

    fn window(&self) -> Duration {
        Duration::from_secs(self.window)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }

    /// Returns whether the results belong on the page.
    fn is_whole(&self) -> bool {
        self.only.is_none() && self.binary.is_none() && (self.count, self.window) == (COUNT, WINDOW)
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
    if bench.needs_creel && effort.binary.is_none() {
        step("release build", || {
            child::run(&mut workspace::cargo(&["build", "--release", "--package", "creel"]))
        })?;
    }
    (bench.run)(effort)?;
    Ok(ExitCode::SUCCESS)
}
