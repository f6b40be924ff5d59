//! How fast creel releases, against every other way on the same engine.
//!
//! Each round measures every way once, each on a fresh population of the same
//! make, and starts with another way than the round before: whatever slows the
//! machine down for a while hits all of them. Only the least concurrent raw
//! ways, which show the slope and never the limit, are measured in one round.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::docker::Docker;
use creel_testkit::engine::PrivateEngine;

use super::machine::{self, Machine};
use super::report::{Measured, Results};
use super::ways::{Population, Scenario, Way, sequential_each};
use super::{Effort, memory, page, report};
use crate::step::step;
use crate::{child, engine, packages};

const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "running",
        title: "100 running containers whose PID 1 ignores SIGTERM",
        running: 100,
        exited: 0,
        created: 0,
        networks: 0,
        volumes: 0,
    },
    Scenario {
        name: "exited",
        title: "100 exited containers",
        running: 0,
        exited: 100,
        created: 0,
        networks: 0,
        volumes: 0,
    },
    Scenario {
        name: "mixed",
        title: "300 mixed containers (100 running, 100 exited, 100 created), 30 networks, 50 volumes",
        running: 100,
        exited: 100,
        created: 100,
        networks: 30,
        volumes: 50,
    },
];

/// The name of the part that measures memory.
const MEMORY: &str = "memory";
/// How many containers the slowest way is measured on.
pub(super) const SEQUENTIAL_SAMPLE: usize = 3;
/// A sweep that takes longer than this has hung.
const SWEEP_DEADLINE: Duration = Duration::from_secs(300);

/// Measures on a fresh engine, writes the results and checks the bar.
pub(super) fn run(effort: &Effort) -> Result<()> {
    step("packages", packages::install_missing)?;
    engine::with_engine(|engine| step("sweep", || run_on(engine, effort)))
}

fn run_on(engine: &PrivateEngine, effort: &Effort) -> Result<()> {
    let docker = engine.engine().docker();
    let home = engine.directory().join("bench-home");
    std::fs::create_dir_all(&home)?;
    let creel = Creel::new(effort.binary(), &home, engine.engine().host());
    let creel = creel.deadline(SWEEP_DEADLINE);
    let wanted = |name: &str| effort.wants(name);
    let scenarios: Vec<&Scenario> = SCENARIOS.iter().filter(|one| wanted(one.name)).collect();
    if scenarios.is_empty() && !wanted(MEMORY) {
        bail!("no such part; there are: {}, {MEMORY}", SCENARIOS.map(|one| one.name).join(", "));
    }
    let mut measured = Vec::new();
    for scenario in &scenarios {
        measured.push(measure(&docker, &creel, scenario, effort.rounds)?);
    }
    let results = Results {
        sequential: scenarios
            .iter()
            .any(|scenario| scenario.running > 0)
            .then(|| sequential_each(&docker, SEQUENTIAL_SAMPLE))
            .transpose()?,
        measured,
        memory: if wanted(MEMORY) { memory::peaks(&effort.binary(), &home)? } else { Vec::new() },
        rounds: effort.rounds,
        machine: Machine::here(),
        engine: machine::engine(&docker)?,
    };
    let text = report::render(&results)?;
    println!("{text}");
    if effort.is_whole() {
        page::write("sweep", &text)?;
    }
    report::check(&results)
}

fn measure(docker: &Docker, creel: &Creel, scenario: &Scenario, rounds: usize) -> Result<Measured> {
    let mut measured = Measured::new(*scenario);
    for round in 0..rounds {
        let mut ways: Vec<Way> =
            Way::ALL.into_iter().filter(|way| round == 0 || !way.is_measured_once()).collect();
        // One on each time: whatever comes last in one round comes earlier in the next.
        let first = round % ways.len();
        ways.rotate_left(first);
        for (turn, way) in ways.into_iter().enumerate() {
            child::check_interrupted()?;
            let started_at = Instant::now();
            let population = Population::make(docker, scenario, round * Way::ALL.len() + turn)?;
            let made = started_at.elapsed().as_secs_f64();
            let took = population.release(way, creel)?;
            let seconds = took.as_secs_f64();
            println!(
                "{} round {}: {way}: {seconds:.2} s (made in {made:.1} s)",
                scenario.name,
                round + 1
            );
            measured.add(way, took);
        }
    }
    Ok(measured)
}
