//! The project's own chores: tests, torture, benchmarks.
//!
//! Everything runs on real parts, so each chore provides them: Debian's packages, a private Docker
//! Engine, the test image. A missing part is a failure, never a skipped test. Whatever happens, the
//! engine is stopped again. If this program itself is killed, its next start removes the leftovers.
#![expect(clippy::print_stdout, reason = "a chore talks to the developer who typed it")]

mod archive;
mod bench;
mod child;
mod deny;
mod engine;
mod kernel;
mod layers;
mod packages;
mod parts;
mod plugins;
mod programs;
mod rootfs;
mod step;
mod suite;
mod tally;
mod times;
mod torture_tier;
mod venvs;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Run the project's development tasks
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Install what is missing, check the code and run every test
    Test {
        /// Write the times of all modules into docs/benchmarks.md
        #[arg(long, conflicts_with = "filters")]
        record: bool,
        /// Run this many tests of a program at once
        #[arg(long, default_value_t = suite::threads())]
        threads: usize,
        /// Arguments for the test programs, such as a part of a test's name
        #[arg(last = true)]
        filters: Vec<String>,
    },
    /// Run the full matrices and random instants, and write their reports
    Torture {
        /// Run only this suite
        suite: Option<String>,
        /// List the suites
        #[arg(long)]
        list: bool,
    },
    /// Run the benchmarks
    Bench {
        /// The benchmark to run; lists them if omitted
        name: Option<String>,
        #[command(flatten)]
        effort: bench::Effort,
    },
    /// Check the direction of dependencies between crates and between modules
    Layers {
        /// Also print the dependencies
        #[arg(long)]
        print: bool,
        /// Write the graph of crates into docs/architecture.md
        #[arg(long)]
        write: bool,
    },
    /// Check the dependencies' bans, licenses and sources with cargo-deny
    Deny,
    /// Install what the tests need besides an engine, and print how they find it
    Parts,
    /// Keep an engine running for single tests by hand
    Engine {
        #[command(subcommand)]
        act: engine::Act,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<ExitCode> {
    child::heed_signals()?;
    match chore {
        Chore::Test { record, threads, filters } => suite::run(threads, record, &filters),
        Chore::Torture { list: true, .. } => torture_tier::list(),
        Chore::Torture { suite, list: false } => torture_tier::run(suite.as_deref()),
        Chore::Bench { name, effort } => bench::run(name.as_deref(), &effort),
        Chore::Layers { print, write } => layers::run(print, write),
        Chore::Deny => deny::run(),
        Chore::Parts => parts::run(),
        Chore::Engine { act } => engine::run(&act),
    }
}
