//! The measured figures as a section, and the bar they have to pass.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::bench::machine::Machine;
use crate::bench::page;

/// What the two ways are called.
pub(super) const WAYS: [&str; 2] = ["masked", "searched by ripgrep"];
/// Which part of ripgrep's speed is enough.
const PART: f64 = 0.5;

/// Every figure of one run.
pub(super) struct Results {
    /// Of masking, and of searching.
    pub(super) figures: [Vec<Duration>; 2],
    pub(super) bytes: usize,
    pub(super) patterns: usize,
    pub(super) rounds: usize,
    pub(super) machine: Machine,
    pub(super) ripgrep: String,
}

impl Results {
    fn sorted(&self, way: usize) -> Vec<Duration> {
        let mut figures = self.figures[way].clone();
        figures.sort_unstable();
        figures
    }

    fn median(&self, way: usize) -> Duration {
        let figures = self.sorted(way);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    /// Returns how fast masking is, as a part of ripgrep's speed.
    fn part(&self) -> f64 {
        self.median(1).as_secs_f64() / self.median(0).as_secs_f64().max(f64::EPSILON)
    }

    fn speed(&self, way: usize) -> f64 {
        self.bytes as f64 / 1e6 / self.median(way).as_secs_f64().max(f64::EPSILON)
    }
}

/// Returns the section.
pub(super) fn render(results: &Results) -> Result<String> {
    let mut text = String::from("## Sanitiser\n\n");
    writeln!(text, "{}\n", page::origin("sanitise"))?;
    writeln!(text, "{}, {}.\n", results.machine, results.ripgrep)?;
    writeln!(
        text,
        "A log of {:.0} MB with {} patterns to find: the rules, and six known secrets in all their\n\
         encodings. Medians of {} interleaved rounds, of whole processes. ripgrep counts the lines that\n\
         match, on one thread; the masker also judges random text, which no expression can, and writes\n\
         the log again. The bar: at least {PART} × the speed of ripgrep.\n",
        results.bytes as f64 / 1e6,
        results.patterns,
        results.rounds
    )?;
    writeln!(text, "| way | median | fastest | slowest | speed |\n|---|---:|---:|---:|---:|")?;
    for (way, name) in WAYS.iter().enumerate() {
        let figures = results.sorted(way);
        let (Some(fastest), Some(slowest)) = (figures.first(), figures.last()) else { continue };
        let (median, speed) = (results.median(way), results.speed(way));
        writeln!(
            text,
            "| {name} | {median:.2?} | {fastest:.2?} | {slowest:.2?} | {speed:.0} MB/s |"
        )?;
    }
    writeln!(text, "\nMasking has {:.2} × the speed of the search.", results.part())?;
    Ok(text)
}

/// Fails when the bar is missed.
pub(super) fn check(results: &Results) -> Result<()> {
    let part = results.part();
    if part < PART {
        bail!("the bar is missed: {part:.2} × the speed of ripgrep");
    }
    Ok(())
}
