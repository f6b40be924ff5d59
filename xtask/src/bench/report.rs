//! The measured figures as a page, and the bar they have to pass.

use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::memory;
use super::ways::{Scenario, Way};
use crate::workspace;

/// How much slower than the best raw figure creel may be.
const RAW_FACTOR: f64 = 1.1;
/// What planning and verification may add.
const RAW_ALLOWANCE: Duration = Duration::from_millis(300);
/// What a listing of [`memory::COUNT`] containers may take.
const MEMORY_LIMIT: u64 = 50_000_000;

/// Every figure of one run of the benchmark.
pub(super) struct Results {
    pub(super) measured: Vec<Measured>,
    pub(super) sequential_each: Duration,
    pub(super) sequential_sample: usize,
    /// Bytes.
    pub(super) memory: u64,
    pub(super) rounds: usize,
    /// The engine's version.
    pub(super) engine: String,
}

/// The figures of one scenario.
pub(super) struct Measured {
    pub(super) scenario: Scenario,
    figures: Vec<(Way, Duration)>,
}

impl Measured {
    pub(super) fn new(scenario: Scenario) -> Self {
        Self { scenario, figures: Vec::new() }
    }

    pub(super) fn add(&mut self, way: Way, took: Duration) {
        self.figures.push((way, took));
    }

    fn sorted(&self, way: Way) -> Vec<Duration> {
        let of_way = self.figures.iter().filter(|(measured, _)| *measured == way);
        let mut figures: Vec<Duration> = of_way.map(|(_, took)| *took).collect();
        figures.sort();
        figures
    }

    fn median(&self, way: Way) -> Duration {
        let figures = self.sorted(way);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    fn best(&self, condition: impl Fn(Way) -> bool) -> Duration {
        let ways = Way::ALL.into_iter().filter(|way| condition(*way));
        ways.map(|way| self.median(way)).min().unwrap_or_default()
    }

    fn failures(&self) -> Vec<String> {
        let creel = self.median(Way::Creel);
        let cli = self.best(Way::is_cli);
        let raw = self.best(Way::is_raw).mul_f64(RAW_FACTOR) + RAW_ALLOWANCE;
        let mut failures = Vec::new();
        for (limit, what) in [(cli, "the best CLI way"), (raw, "1.1 × the best raw API + 0.3 s")] {
            if creel > limit {
                let name = self.scenario.name;
                failures.push(format!("{name}: creel {creel:.2?}, {what} {limit:.2?}"));
            }
        }
        failures
    }
}

/// Returns the page.
pub(super) fn render(results: &Results) -> Result<String> {
    let mut text = String::from("# Benchmarks: sweep\n\n");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let date = jiff::Zoned::now().strftime("%Y-%m-%d").to_string();
    writeln!(text, "`cargo xtask bench sweep`, {date}, commit {}.", workspace::commit())?;
    writeln!(text, "{cores} cores, Docker Engine {} of our own.", results.engine)?;
    writeln!(
        text,
        "Medians of {} interleaved rounds, each on a fresh population.",
        results.rounds
    )?;
    writeln!(text, "creel's figures include planning and verification.\n")?;
    for measured in &results.measured {
        render_scenario(&mut text, measured, results)?;
    }
    writeln!(text, "## Memory\n")?;
    writeln!(
        text,
        "Listing {} containers (on a fake engine): {:.1} MB at the peak, limit {:.0} MB.",
        memory::COUNT,
        results.memory as f64 / 1e6,
        MEMORY_LIMIT as f64 / 1e6
    )?;
    Ok(text)
}

fn render_scenario(text: &mut String, measured: &Measured, results: &Results) -> Result<()> {
    writeln!(text, "## {}\n\n| way | median | fastest | slowest |", measured.scenario.title)?;
    writeln!(text, "|---|---:|---:|---:|")?;
    for way in Way::ALL {
        let figures = measured.sorted(way);
        let (Some(fastest), Some(slowest)) = (figures.first(), figures.last()) else { continue };
        let median = measured.median(way);
        writeln!(text, "| {way} | {median:.2?} | {fastest:.2?} | {slowest:.2?} |")?;
    }
    if measured.scenario.running > 0 {
        let each = results.sequential_each;
        let all = each.as_secs_f64() * measured.scenario.running as f64;
        let sample = results.sequential_sample;
        writeln!(
            text,
            "| sequential `docker stop -t 10`, `docker rm` of the running ones \
             (measured on {sample}, {each:.2?} each, scaled) | {all:.0} s | | |"
        )?;
    }
    writeln!(text)?;
    Ok(())
}

/// Writes the page to its place in the documentation.
pub(super) fn write(text: &str) -> Result<()> {
    let path = workspace::root().join("docs/benchmarks.md");
    fs::create_dir_all(path.with_file_name(""))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("xtask: wrote {}", path.display());
    Ok(())
}

/// Fails when a figure misses the bar.
pub(super) fn check(results: &Results) -> Result<()> {
    let mut failures: Vec<String> = results.measured.iter().flat_map(Measured::failures).collect();
    if results.memory > MEMORY_LIMIT {
        failures.push(format!("memory: {} bytes, limit {MEMORY_LIMIT}", results.memory));
    }
    if !failures.is_empty() {
        bail!("the bar was missed:\n{}", failures.join("\n"));
    }
    Ok(())
}
