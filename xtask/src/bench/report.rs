//! The measured figures as a page, and the bar they have to meet.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};

use super::machine::MachineInfo;
use super::memory::{self, Peak};
use super::methods::{PopulationSpec, ReleaseMethod};
use super::page;
use super::sweep::SEQUENTIAL_SAMPLE;

/// The maximum duration of creel, as a multiple of the best raw figure.
const RAW_FACTOR: f64 = 1.1;
/// The time that planning and verification may add.
const RAW_ALLOWANCE: Duration = Duration::from_millis(300);
/// The maximum memory for a listing of [`memory::COUNT`] containers.
const MEMORY_LIMIT: u64 = 50_000_000;

/// Every figure of one run of the benchmark.
pub(super) struct SweepResults {
    pub(super) measured: Vec<Measured>,
    /// The time of a sequential stop-then-remove for one container, if it was measured.
    pub(super) sequential: Option<Duration>,
    pub(super) memory: Vec<Peak>,
    pub(super) rounds: usize,
    pub(super) machine: MachineInfo,
    pub(super) engine: String,
}

/// The figures of one scenario.
pub(super) struct Measured {
    pub(super) scenario: PopulationSpec,
    figures: Vec<(ReleaseMethod, Duration)>,
}

impl Measured {
    pub(super) fn new(scenario: PopulationSpec) -> Self {
        Self { scenario, figures: Vec::new() }
    }

    pub(super) fn add(&mut self, method: ReleaseMethod, took: Duration) {
        self.figures.push((method, took));
    }

    fn sorted(&self, method: ReleaseMethod) -> Vec<Duration> {
        let of_method = self.figures.iter().filter(|(measured, _)| *measured == method);
        let mut figures: Vec<Duration> = of_method.map(|(_, took)| *took).collect();
        figures.sort();
        figures
    }

    fn median(&self, method: ReleaseMethod) -> Duration {
        let figures = self.sorted(method);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    fn best(&self, condition: impl Fn(ReleaseMethod) -> bool) -> Duration {
        let methods = ReleaseMethod::ALL.into_iter().filter(|method| condition(*method));
        methods.map(|method| self.median(method)).min().unwrap_or_default()
    }

    /// Returns the time limit for creel.
    fn raw_limit(&self) -> Duration {
        self.best(ReleaseMethod::is_raw).mul_f64(RAW_FACTOR) + RAW_ALLOWANCE
    }

    fn failures(&self) -> Vec<String> {
        let creel = self.median(ReleaseMethod::Creel);
        let (cli, raw) = (self.best(ReleaseMethod::is_cli), self.raw_limit());
        let mut failures = Vec::new();
        for (limit, what) in [(cli, "the best CLI method"), (raw, "1.1 × the best raw API + 0.3 s")]
        {
            if creel > limit {
                let name = self.scenario.name;
                failures.push(format!("{name}: creel {creel:.2?}, {what} {limit:.2?}"));
            }
        }
        failures
    }
}

/// Returns the section.
pub(super) fn render(results: &SweepResults) -> Result<String> {
    let mut text = String::from("## Sweep\n\n");
    writeln!(text, "{}\n", page::origin("sweep"))?;
    writeln!(text, "{}, {}.\n", results.machine, results.engine)?;
    writeln!(
        text,
        "Medians of {} interleaved rounds on one engine, each method on a fresh population; the raw\n\
         API at 1, 2 and 4 at a time is measured in the first round only. creel's figures are\n\
         those of the whole command, with its start, planning and verification. The bar: faster\n\
         than every CLI method, and at most {RAW_FACTOR} × the best raw-API figure + {RAW_ALLOWANCE:?}.\n",
        results.rounds
    )?;
    for measured in &results.measured {
        render_scenario(&mut text, measured, results)?;
    }
    if !results.memory.is_empty() {
        render_memory(&mut text, &results.memory)?;
    }
    Ok(text)
}

fn render_memory(text: &mut String, peaks: &[Peak]) -> Result<()> {
    writeln!(
        text,
        "### Memory\n\nThe peak of resident memory with {} containers of Compose listed, of two\n\
         kilobytes each (by a fake engine); the limit is {:.0} MB.\n",
        memory::COUNT,
        MEMORY_LIMIT as f64 / 1e6
    )?;
    writeln!(text, "| command | peak |\n|---|---:|")?;
    for Peak { command, bytes } in peaks {
        writeln!(text, "| `{command}` | {:.1} MB |", *bytes as f64 / 1e6)?;
    }
    Ok(())
}

fn render_scenario(text: &mut String, measured: &Measured, results: &SweepResults) -> Result<()> {
    writeln!(text, "### {}\n\n| method | median | fastest | slowest |", measured.scenario.title)?;
    writeln!(text, "|---|---:|---:|---:|")?;
    for method in ReleaseMethod::ALL {
        let figures = measured.sorted(method);
        let (Some(fastest), Some(slowest)) = (figures.first(), figures.last()) else { continue };
        let median = measured.median(method);
        writeln!(text, "| {method} | {median:.2?} | {fastest:.2?} | {slowest:.2?} |")?;
    }
    let running = measured.scenario.running;
    if let Some(each) = results.sequential.filter(|_| running > 0) {
        let all = each.as_secs_f64() * running as f64;
        writeln!(
            text,
            "| sequential `docker stop -t 10`, `docker rm` of the running ones \
             (measured on {SEQUENTIAL_SAMPLE}, {each:.2?} each, scaled) | {all:.0} s | | |"
        )?;
    }
    let creel = measured.median(ReleaseMethod::Creel);
    let part = |limit: Duration| 100.0 * creel.as_secs_f64() / limit.as_secs_f64();
    let (cli, raw) = (measured.best(ReleaseMethod::is_cli), measured.raw_limit());
    writeln!(
        text,
        "\ncreel takes {:.0} % of the best CLI method ({cli:.2?}) and {:.0} % of the bar by the raw \
         API ({raw:.2?}).\n",
        part(cli),
        part(raw)
    )?;
    Ok(())
}

/// Fails when a figure misses the bar.
pub(super) fn check(results: &SweepResults) -> Result<()> {
    let mut failures: Vec<String> = results.measured.iter().flat_map(Measured::failures).collect();
    let too_large = results.memory.iter().filter(|peak| peak.bytes > MEMORY_LIMIT);
    failures.extend(too_large.map(|peak| {
        format!("memory: `{}` {} bytes, limit {MEMORY_LIMIT}", peak.command, peak.bytes)
    }));
    if !failures.is_empty() {
        bail!("the bar was missed:\n{}", failures.join("\n"));
    }
    Ok(())
}
