//! The first tier: everything on real parts, from a fresh clone.

use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use creel_testkit::engine::PrivateEngine;

use crate::bench::machine::MachineInfo;
use crate::bench::page;
use crate::programs::TestProgram;
use crate::step::{seconds, step};
use crate::tally::Tally;
use crate::times::{ProgramTimes, SuiteTimes};
use crate::{child, engine, parts, programs, workspace};

/// The part of a test's path that moves it to the second tier.
pub(crate) const TORTURE: &str = "torture::";

/// The part of a test's path that keeps it apart: tests that need the whole machine run after all
/// others, one at a time.
const ALONE: &str = "alone::";
/// The program that has such tests.
const ALONE_IN: &str = "creel, main";

/// The number of tests that run at once on each core. Most tests wait most of the time: for an
/// engine, for a process, for a deadline.
const TESTS_PER_CORE: usize = 2;

/// Returns how many tests of one program run at once.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from) * TESTS_PER_CORE
}

/// Checks the code, runs every test of the first tier, and prints the times and the totals.
pub(crate) fn run(threads: usize, record: bool, filters: &[String]) -> Result<ExitCode> {
    let started_at = Instant::now();
    let result = check().and_then(|()| test(threads, filters));
    println!("xtask: total {}", seconds(started_at.elapsed()));
    let (tally, times) = result?;
    println!("\n{}", times.tables());
    println!("xtask: tests {}", seconds(times.total()));
    println!("{tally}");
    if record && tally.is_good() {
        page::write("suite", &section(&tally, &times))?;
    }
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

/// Returns the section of the page of benchmarks.
fn section(tally: &Tally, times: &SuiteTimes) -> String {
    let (origin, machine) = (page::measured_by("cargo xtask test --record"), MachineInfo::here());
    let total = seconds(times.total());
    format!(
        "## Test suite\n\n{origin}\n\n{machine}.\n\n{tally}; all tests took {total} with \
         everything built, without the checks and the build.\n\n{}",
        times.tables()
    )
}

fn test(threads: usize, filters: &[String]) -> Result<(Tally, SuiteTimes)> {
    let programs = step("build", programs::build)?;
    engine::with_engine(|engine| {
        let mut runner = Runner { engine, tally: Tally::default(), times: SuiteTimes::default() };
        let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
        let others = if filters.is_empty() { vec!["--skip", ALONE] } else { filters };
        let others = [&["--skip", TORTURE], others.as_slice()].concat();
        for program in &programs {
            step(&program.name, || runner.run(program, threads, &others))?;
        }
        step("doc tests", || runner.run_doc_tests(&others))?;
        if others.contains(&ALONE) {
            for program in programs.iter().filter(|program| program.name == ALONE_IN) {
                step("test alone", || runner.run(program, 1, &[ALONE]))?;
            }
        }
        Ok((runner.tally, runner.times))
    })
}

/// Runs tests on an engine, and adds their results and times.
struct Runner<'a> {
    engine: &'a PrivateEngine,
    tally: Tally,
    times: SuiteTimes,
}

impl Runner<'_> {
    fn run(&mut self, program: &TestProgram, threads: usize, arguments: &[&str]) -> Result<()> {
        let mut command = program.command();
        command.args(arguments).args(["--test-threads", &threads.to_string()]);
        let mut times = ProgramTimes::start(&program.name, threads);
        self.read(&mut command, |line, printed_at| times.add_line(line, printed_at))?;
        self.times.add(times);
        Ok(())
    }

    fn run_doc_tests(&mut self, arguments: &[&str]) -> Result<()> {
        let all = ["test", "--workspace", "--doc", "--no-fail-fast", "--"];
        self.read(&mut workspace::cargo(&[&all, arguments].concat()), |_, _| {})
    }

    fn read(
        &mut self,
        command: &mut Command,
        mut on_line: impl FnMut(&str, Instant),
    ) -> Result<()> {
        parts::point(engine::point(command, self.engine));
        let before = self.tally.failed;
        let status = child::run_reading(command, |line, printed_at| {
            self.tally.add_line(line);
            on_line(line, printed_at);
        })?;
        if !status.success() && self.tally.failed == before {
            println!("xtask: a test program did not build or ended without a result");
            self.tally.add_unreported_failure();
        }
        Ok(())
    }
}
