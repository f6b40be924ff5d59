//! The same sandboxes released by creel and by the official SDK, without limits.
//!
//! Each round measures every way once, each on a fresh population, and starts
//! with another way than the round before.

use std::fmt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::stage::{LABEL, Stage};
use crate::bench::Effort;
use crate::{child, venvs};

/// How many sandboxes each way releases.
pub(super) const COUNT: usize = 300;
/// How long a way may take.
const DEADLINE: Duration = Duration::from_secs(300);
const SCRIPT: &str = include_str!("release.py");

/// One way to release a population.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// `creel sweep --apply`, planning and proof included.
    Creel,
    /// The SDK, one delete after the other.
    Loop,
    /// The SDK, 32 deletes at a time.
    Threads,
    /// The SDK, 32 at a time, each waited for until it answers 404.
    ThreadsWait,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Creel, Self::Loop, Self::Threads, Self::ThreadsWait];

    /// Returns the word by which the script knows it.
    const fn name(self) -> &'static str {
        match self {
            Self::Creel => "creel",
            Self::Loop => "loop",
            Self::Threads => "threads",
            Self::ThreadsWait => "threads-wait",
        }
    }
}

impl fmt::Display for Way {
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
    pub(super) way: Way,
    /// How long it took by its own account.
    pub(super) took: Duration,
    /// How long until the server had none left.
    pub(super) gone_after: Duration,
    pub(super) requests: u64,
}

/// All measurements.
pub(super) struct Beside {
    pub(super) figures: Vec<Figure>,
    pub(super) rounds: usize,
}

impl Beside {
    fn of(&self, way: Way) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(move |figure| figure.way == way)
    }

    /// Returns the durations of a way, the shortest first.
    pub(super) fn sorted(&self, way: Way, part: fn(&Figure) -> Duration) -> Vec<Duration> {
        let mut durations: Vec<Duration> = self.of(way).map(part).collect();
        durations.sort();
        durations
    }

    pub(super) fn median(&self, way: Way, part: fn(&Figure) -> Duration) -> Duration {
        let sorted = self.sorted(way, part);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    pub(super) fn requests(&self, way: Way) -> u64 {
        self.of(way).map(|figure| figure.requests).max().unwrap_or_default()
    }
}

/// Measures every way in every round.
pub(super) fn measure(effort: &Effort) -> Result<Beside> {
    let stage = Stage::start(effort, "sdk", "")?;
    stage.delay_answers()?;
    std::fs::write(stage.directory.join("release.py"), SCRIPT)?;
    let mut figures = Vec::new();
    for round in 0..effort.rounds {
        let mut ways = Way::ALL;
        ways.rotate_left(round % Way::ALL.len());
        for way in ways {
            child::check_interrupted()?;
            let figure = one(&stage, way, &format!("{}-{round}", way.name()))?;
            let (took, gone) = (figure.took.as_secs_f64(), figure.gone_after.as_secs_f64());
            println!("round {}: {}: {took:.2} s, gone after {gone:.2} s", round + 1, way.name());
            figures.push(figure);
        }
    }
    stage.stop()?;
    Ok(Beside { figures, rounds: effort.rounds })
}

fn one(stage: &Stage, way: Way, label: &str) -> Result<Figure> {
    stage.seed(COUNT, label)?;
    stage.server.admin("DELETE", "requests", &json!(null))?;
    let (took, ended_at) = match way {
        Way::Creel => (by_creel(stage, label)?, SystemTime::now()),
        Way::Loop | Way::Threads | Way::ThreadsWait => by_sdk(stage, way, label)?,
    };
    let counts = stage.server.admin("DELETE", "requests", &json!(null))?;
    // How long it goes on after the way itself is done, where it does.
    let mut after = Duration::ZERO;
    while stage.left(label)? > 0 {
        after = ended_at.elapsed().unwrap_or_default();
        if after > DEADLINE {
            bail!("{way} left sandboxes behind");
        }
    }
    let requests = counts["total"].as_u64().context("the server counts requests")?;
    Ok(Figure { way, took, gone_after: took + after, requests })
}

fn by_creel(stage: &Stage, label: &str) -> Result<Duration> {
    let label = format!("{LABEL}={label}");
    let creel = stage.creel.clone().deadline(DEADLINE);
    let sweep = ["sweep", "--provider", "daytona", "--label", &label, "--apply", "--json"];
    let output = creel.run(sweep);
    let said: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    if output.code() != Some(0) || said["gone"] != COUNT {
        bail!("creel did not release all\n{}", output.stderr);
    }
    Ok(output.took)
}

/// Returns how long it took, and when it was done.
fn by_sdk(stage: &Stage, way: Way, label: &str) -> Result<(Duration, SystemTime)> {
    let mut python = Command::new(venvs::newest_sdk());
    python.arg(stage.directory.join("release.py")).args([way.name(), LABEL, label]);
    python.envs(stage.server.environment()).env("NO_PROXY", "*");
    let mut said = Value::Null;
    let status = child::run_reading(&mut python, |line| {
        said = serde_json::from_str(line).unwrap_or_default();
    })?;
    if !status.success() || said["released"] != COUNT {
        bail!("the SDK did not release all: {status}, {said}");
    }
    let told = |name: &str| {
        let seconds = said[name].as_f64().with_context(|| format!("the script tells no {name}"));
        seconds.map(Duration::from_secs_f64)
    };
    Ok((told("seconds")?, SystemTime::UNIX_EPOCH + told("ended_at")?))
}
