//! The second tier: the full matrices and random instants, with a report each.
//!
//! A torture test is one whose path contains `torture::SUITE::`. It adds to the report by printing
//! lines that begin with `report: `.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::step::{seconds, step};
use crate::suite::TORTURE;
use crate::tally::Tally;
use crate::{child, engine, kernel, packages, workspace};

/// The suite that needs a virtual machine.
const MACHINE: &str = "machine";
/// The prefix of a test's report lines.
const REPORT: &str = "report: ";

/// The result of one suite.
struct SuiteOutcome {
    tally: Tally,
    lines: Vec<String>,
    took: Duration,
}

/// Prints the suites.
pub(crate) fn list() -> Result<ExitCode> {
    for suite in suites()? {
        println!("{suite}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one suite, or all, and writes a report for each.
pub(crate) fn run(wanted: Option<&str>) -> Result<ExitCode> {
    step("packages", packages::install_missing)?;
    let mut suites = step("suites", suites)?;
    if let Some(wanted) = wanted {
        if !suites.contains(wanted) {
            let known = suites.into_iter().collect::<Vec<_>>().join(", ");
            bail!("no torture suite {wanted}; there are: {known}");
        }
        suites.retain(|suite| suite == wanted);
    }
    if suites.contains(MACHINE) {
        step("kernel", kernel::install_missing)?;
    }
    let mut total = Tally::default();
    for suite in &suites {
        let outcome = torture(suite)?;
        write_report(suite, &outcome)?;
        total.passed += outcome.tally.passed;
        total.failed += outcome.tally.failed;
    }
    println!("{total}");
    Ok(if total.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn suites() -> Result<BTreeSet<String>> {
    // Not streamed, because the names of all tests are only noise.
    let mut command = workspace::cargo(&["test", "--workspace", "--tests", "--", "--list"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot list the tests: {}", output.status);
    }
    let suites: BTreeSet<String> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(suite_of).collect();
    if suites.is_empty() {
        bail!("no test's path holds `{TORTURE}SUITE::`");
    }
    Ok(suites)
}

/// Returns the suite of a line such as `crash::torture::matrix::a_test: test`.
fn suite_of(line: &str) -> Option<String> {
    let path = line.strip_suffix(": test")?;
    let (_, rest) = path.split_once(TORTURE)?;
    Some(rest.split_once("::")?.0.to_owned())
}

fn torture(suite: &str) -> Result<SuiteOutcome> {
    let started_at = Instant::now();
    engine::with_engine(|engine| {
        step(suite, || {
            let filter = format!("{TORTURE}{suite}::");
            let arguments = ["test", "--workspace", "--tests", "--no-fail-fast", "--"];
            let mut command = workspace::cargo(&arguments);
            // One at a time and unbuffered, so that the report's lines are complete and in
            // sequence.
            command.args([&filter, "--include-ignored", "--nocapture", "--test-threads=1"]);
            let mut tally = Tally::default();
            let mut lines = Vec::new();
            let status = child::run_reading(
                engine::point(kernel::point(&mut command), engine),
                |line, _| {
                    tally.add_line(line);
                    lines.extend(report_line(line));
                },
            )?;
            if !status.success() && tally.failed == 0 {
                tally.add_unreported_failure();
            }
            Ok(SuiteOutcome { tally, lines, took: started_at.elapsed() })
        })
    })
}

/// Returns what a line adds to the report. The first line follows the test's name.
fn report_line(line: &str) -> Option<String> {
    let line = match line.strip_prefix("test ") {
        Some(rest) => rest.split_once(" ... ").map_or(line, |(_, printed)| printed),
        None => line,
    };
    Some(line.strip_prefix(REPORT)?.to_owned())
}

fn write_report(suite: &str, outcome: &SuiteOutcome) -> Result<()> {
    let mut text = format!("# Torture: {suite}\n\n");
    writeln!(text, "- date: {}", jiff::Zoned::now().strftime("%Y-%m-%d"))?;
    writeln!(text, "- commit: {}", workspace::commit())?;
    writeln!(text, "- command: `cargo xtask torture {suite}`")?;
    writeln!(text, "- took: {}", seconds(outcome.took))?;
    writeln!(text, "- result: {}\n", outcome.tally)?;
    for line in &outcome.lines {
        writeln!(text, "- {line}")?;
    }
    let directory = workspace::root().join("docs/reports");
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("torture-{suite}.md"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("xtask: wrote {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_the_module_after_torture() {
        let line = "crash::torture::matrix::every_point: test";
        assert_eq!(suite_of(line).as_deref(), Some("matrix"));
        assert_eq!(suite_of("crash::matrix::every_point: test"), None);
        assert_eq!(suite_of("crash::torture::loose: test"), None);
    }

    #[test]
    fn report_lines_are_found_alone_and_after_a_test_name() {
        assert_eq!(report_line("report: 3 of 3").as_deref(), Some("3 of 3"));
        let after_name = "test a::torture::b::c ... report: 3 of 3";
        assert_eq!(report_line(after_name).as_deref(), Some("3 of 3"));
        assert_eq!(report_line("no report: here"), None);
    }
}
