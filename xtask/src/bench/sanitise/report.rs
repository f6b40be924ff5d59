//! The measured figures as a section, and the bar they have to meet.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::bench::machine::MachineInfo;
use crate::bench::page;

/// The names of the two programs' runs.
pub(super) const VARIANTS: [&str; 2] = ["masked", "searched by ripgrep"];
/// The minimum speed, as a fraction of ripgrep's.
const PART: f64 = 0.5;

/// Every figure of one run.
pub(super) struct SanitiseResults {
    /// The durations of masking and of searching.
    pub(super) figures: [Vec<Duration>; 2],
    pub(super) bytes: usize,
    pub(super) patterns: usize,
    pub(super) rounds: usize,
    pub(super) machine: MachineInfo,
    pub(super) ripgrep: String,
}

impl SanitiseResults {
    fn sorted(&self, variant: usize) -> Vec<Duration> {
        let mut figures = self.figures[variant].clone();
        figures.sort_unstable();
        figures
    }

    fn median(&self, variant: usize) -> Duration {
        let figures = self.sorted(variant);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    /// Returns the speed of masking, as a fraction of ripgrep's speed.
    fn part(&self) -> f64 {
        self.median(1).as_secs_f64() / self.median(0).as_secs_f64().max(f64::EPSILON)
    }

    fn speed(&self, variant: usize) -> f64 {
        self.bytes as f64 / 1e6 / self.median(variant).as_secs_f64().max(f64::EPSILON)
    }
}

/// Returns the section.
pub(super) fn render(results: &SanitiseResults) -> Result<String> {
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
    writeln!(text, "| program | median | fastest | slowest | speed |\n|---|---:|---:|---:|---:|")?;
    for (variant, name) in VARIANTS.iter().enumerate() {
        let figures = results.sorted(variant);
        let (Some(fastest), Some(slowest)) = (figures.first(), figures.last()) else { continue };
        let (median, speed) = (results.median(variant), results.speed(variant));
        writeln!(
            text,
            "| {name} | {median:.2?} | {fastest:.2?} | {slowest:.2?} | {speed:.0} MB/s |"
        )?;
    }
    writeln!(text, "\nMasking has {:.2} × the speed of the search.", results.part())?;
    Ok(text)
}

/// Fails when the bar is missed.
pub(super) fn check(results: &SanitiseResults) -> Result<()> {
    let part = results.part();
    if part < PART {
        bail!("the bar is missed: {part:.2} × the speed of ripgrep");
    }
    Ok(())
}
