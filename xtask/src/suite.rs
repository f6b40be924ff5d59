//! The first tier: everything on real parts, from a fresh clone.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::step::{seconds, step};
use crate::tally::Tally;
use crate::{child, engine, parts, workspace};

/// The part of a test's path that moves it to the second tier.
pub(crate) const TORTURE: &str = "torture::";

/// Checks the code, runs every test of the first tier and prints the totals.
pub(crate) fn run(filters: &[String]) -> Result<ExitCode> {
    let started_at = Instant::now();
    let result = check().and_then(|()| test(filters));
    println!("xtask: total {}", seconds(started_at.elapsed()));
    let tally = result?;
    println!("{tally}");
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check() -> Result<()> {
    parts::install_missing()?;
    step("fmt", || child::run(&mut workspace::cargo(&["fmt", "--all", "--check"])))?;
    step("clippy", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        child::run(&mut workspace::cargo(&arguments))
    })
}

fn test(filters: &[String]) -> Result<Tally> {
    engine::with_engine(|engine| {
        step("test", || {
            let arguments = ["test", "--workspace", "--no-fail-fast", "--", "--skip", TORTURE];
            let mut command = workspace::cargo(&arguments);
            parts::point(engine::point(command.args(filters), engine));
            let mut tally = Tally::default();
            let status = child::run_reading(&mut command, |line| tally.add_line(line))?;
            if !status.success() && tally.failed == 0 {
                println!("xtask: a test program did not build or ended without a result");
                tally.add_unreported_failure();
            }
            Ok(tally)
        })
    })
}
