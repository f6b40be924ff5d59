//! The first tier: everything on real parts, from a fresh clone.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use creel_testkit::engine::PrivateEngine;

use crate::step::{seconds, step};
use crate::tally::Tally;
use crate::{child, engine, parts, workspace};

/// The part of a test's path that moves it to the second tier.
pub(crate) const TORTURE: &str = "torture::";

/// The part of a test's path that keeps it apart: tests that need the whole machine run after all
/// others, one at a time.
const ALONE: &str = "alone::";

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
        let all = ["test", "--workspace", "--no-fail-fast", "--", "--skip", TORTURE];
        let mut tally = Tally::default();
        if !filters.is_empty() {
            let filters = filters.iter().map(String::as_str);
            let arguments: Vec<&str> = all.into_iter().chain(filters).collect();
            step("test", || run_tests(&arguments, engine, &mut tally))?;
            return Ok(tally);
        }
        let others = [&all[..], &["--skip", ALONE]].concat();
        step("test", || run_tests(&others, engine, &mut tally))?;
        let alone = ["test", "--package", "creel", "--test", "main", "--", ALONE];
        let alone = [&alone[..], &["--test-threads", "1"]].concat();
        step("test alone", || run_tests(&alone, engine, &mut tally))?;
        Ok(tally)
    })
}

/// Runs tests on an engine, and adds their results.
fn run_tests(arguments: &[&str], engine: &PrivateEngine, tally: &mut Tally) -> Result<()> {
    let mut command = workspace::cargo(arguments);
    parts::point(engine::point(&mut command, engine));
    let before = tally.failed;
    let status = child::run_reading(&mut command, |line| tally.add_line(line))?;
    if !status.success() && tally.failed == before {
        println!("xtask: a test program did not build or ended without a result");
        tally.add_unreported_failure();
    }
    Ok(())
}
