//! The same sandboxes released by creel and by the official SDK, without limits.
//!
//! Each round measures every method once, each on a fresh population, and starts with a different
//! method than the previous round.

use std::fmt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::stage::{DaytonaStage, LABEL};
use crate::bench::Effort;
use crate::{child, venvs};

/// The number of sandboxes that each method releases.
pub(super) const COUNT: usize = 300;
/// The time limit of one method.
const DEADLINE: Duration = Duration::from_secs(300);
const SCRIPT: &str = include_str!("release.py");

/// A method to release a population.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SdkMethod {
    /// `creel sweep --apply`, planning and proof included.
    Creel,
    /// The SDK, one delete after the other.
    Loop,
    /// The SDK, 32 deletes at a time.
    Threads,
    /// The SDK, 32 at a time, each awaited until it answers 404.
    ThreadsWait,
}

impl SdkMethod {
    pub(super) const ALL: [Self; 4] = [Self::Creel, Self::Loop, Self::Threads, Self::ThreadsWait];

    /// Returns the name of the method in the script.
    const fn name(self) -> &'static str {
        match self {
            Self::Creel => "creel",
            Self::Loop => "loop",
            Self::Threads => "threads",
            Self::ThreadsWait => "threads-wait",
        }
    }
}

impl fmt::Display for SdkMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creel => "`creel sweep --apply`: planned, deleted, proven gone",
            Self::Loop => "SDK, a loop over `delete()`: no proof",
            Self::Threads => "SDK, 32 threads, `delete()`: no proof",
            Self::ThreadsWait => "SDK, 32 threads, `delete(wait=True)`: each until it answers 404",
        })
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figure {
    pub(super) method: SdkMethod,
    /// How long the method took by its own account.
    pub(super) took: Duration,
    /// How long it took until the server had none left.
    pub(super) gone_after: Duration,
    pub(super) requests: u64,
}

/// All measurements.
pub(super) struct Beside {
    pub(super) figures: Vec<Figure>,
    pub(super) rounds: usize,
}

impl Beside {
    fn of(&self, method: SdkMethod) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(move |figure| figure.method == method)
    }

    /// Returns the durations of a method, shortest first.
    pub(super) fn sorted(&self, method: SdkMethod, part: fn(&Figure) -> Duration) -> Vec<Duration> {
        let mut durations: Vec<Duration> = self.of(method).map(part).collect();
        durations.sort();
        durations
    }

    pub(super) fn median(&self, method: SdkMethod, part: fn(&Figure) -> Duration) -> Duration {
        let sorted = self.sorted(method, part);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    pub(super) fn requests(&self, method: SdkMethod) -> u64 {
        self.of(method).map(|figure| figure.requests).max().unwrap_or_default()
    }
}

/// Measures every method in every round.
pub(super) fn measure(effort: &Effort) -> Result<Beside> {
    let stage = DaytonaStage::start(effort, "sdk", "")?;
    stage.delay_responses()?;
    std::fs::write(stage.directory.join("release.py"), SCRIPT)?;
    let mut figures = Vec::new();
    for round in 0..effort.rounds {
        let mut methods = SdkMethod::ALL;
        methods.rotate_left(round % SdkMethod::ALL.len());
        for method in methods {
            child::check_interrupted()?;
            let figure = one(&stage, method, &format!("{}-{round}", method.name()))?;
            let (took, gone) = (figure.took.as_secs_f64(), figure.gone_after.as_secs_f64());
            println!("round {}: {}: {took:.2} s, gone after {gone:.2} s", round + 1, method.name());
            figures.push(figure);
        }
    }
    stage.stop()?;
    Ok(Beside { figures, rounds: effort.rounds })
}

fn one(stage: &DaytonaStage, method: SdkMethod, label: &str) -> Result<Figure> {
    stage.seed(COUNT, label)?;
    stage.server.admin("DELETE", "requests", &json!(null))?;
    let (took, ended_at) = match method {
        SdkMethod::Creel => (by_creel(stage, label)?, SystemTime::now()),
        SdkMethod::Loop | SdkMethod::Threads | SdkMethod::ThreadsWait => {
            by_sdk(stage, method, label)?
        }
    };
    let counts = stage.server.admin("DELETE", "requests", &json!(null))?;
    // How long the release continues after the method itself has returned.
    let mut after = Duration::ZERO;
    while stage.left(label)? > 0 {
        after = ended_at.elapsed().unwrap_or_default();
        if after > DEADLINE {
            bail!("{method} left sandboxes behind");
        }
    }
    let requests = counts["total"].as_u64().context("the server counts requests")?;
    Ok(Figure { method, took, gone_after: took + after, requests })
}

fn by_creel(stage: &DaytonaStage, label: &str) -> Result<Duration> {
    let label = format!("{LABEL}={label}");
    let creel = stage.creel.clone().deadline(DEADLINE);
    let sweep = ["sweep", "--provider", "daytona", "--label", &label, "--apply", "--json"];
    let output = creel.run(sweep);
    let figures: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    if output.code() != Some(0) || figures["gone"] != COUNT {
        bail!("creel did not release all\n{}", output.stderr);
    }
    Ok(output.took)
}

/// Returns how long it took, and when it was done.
fn by_sdk(stage: &DaytonaStage, method: SdkMethod, label: &str) -> Result<(Duration, SystemTime)> {
    let mut python = Command::new(venvs::newest_sdk());
    python.arg(stage.directory.join("release.py")).args([method.name(), LABEL, label]);
    python.envs(stage.server.environment()).env("NO_PROXY", "*");
    let mut figures = Value::Null;
    let status = child::run_reading(&mut python, |line, _| {
        figures = serde_json::from_str(line).unwrap_or_default();
    })?;
    if !status.success() || figures["released"] != COUNT {
        bail!("the SDK did not release all: {status}, {figures}");
    }
    let duration_of = |name: &str| {
        let seconds =
            figures[name].as_f64().with_context(|| format!("the script reports no {name}"));
        seconds.map(Duration::from_secs_f64)
    };
    Ok((duration_of("seconds")?, SystemTime::UNIX_EPOCH + duration_of("ended_at")?))
}
