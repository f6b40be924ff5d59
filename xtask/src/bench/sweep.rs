//! How fast creel releases, against every other way on the same engine.
//!
//! Each round measures every way once, each on a fresh population of the same
//! make, and starts with another way than the round before: whatever slows the
//! machine down for a while hits all of them.

use std::time::Duration;

use anyhow::{Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::docker::Docker;
use creel_testkit::engine::PrivateEngine;

use super::report::{Measured, Results};
use super::ways::{Population, Scenario, Way, sequential_each};
use super::{Effort, memory, report};
use crate::child;

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

/// How many containers the slowest way is measured on.
const SEQUENTIAL_SAMPLE: usize = 3;
/// A sweep that takes longer than this has hung.
const SWEEP_DEADLINE: Duration = Duration::from_secs(300);

/// Measures all scenarios and the memory, writes the results and checks the bar.
pub(super) fn run(engine: &PrivateEngine, effort: &Effort) -> Result<()> {
    let docker = engine.engine().docker();
    let home = engine.directory().join("bench-home");
    std::fs::create_dir_all(&home)?;
    let creel = Creel::new(effort.binary(), &home, engine.engine().host());
    let creel = creel.deadline(SWEEP_DEADLINE);
    let wanted =
        |scenario: &&Scenario| effort.only.as_deref().is_none_or(|only| only == scenario.name);
    let mut measured = Vec::new();
    for scenario in SCENARIOS.iter().filter(wanted) {
        measured.push(measure(&docker, &creel, scenario, effort.rounds)?);
    }
    if measured.is_empty() {
        bail!("no such scenario; there are: {}", SCENARIOS.map(|one| one.name).join(", "));
    }
    let results = Results {
        measured,
        sequential_each: sequential_each(&docker, SEQUENTIAL_SAMPLE)?,
        sequential_sample: SEQUENTIAL_SAMPLE,
        memory: memory::peak_of_listing(&effort.binary(), &home)?,
        rounds: effort.rounds,
        engine: docker.api().get("/version")?["Version"].as_str().unwrap_or("?").to_owned(),
    };
    let text = report::render(&results)?;
    println!("{text}");
    if effort.only.is_none() && effort.binary.is_none() {
        report::write(&text)?;
    }
    report::check(&results)
}

fn measure(docker: &Docker, creel: &Creel, scenario: &Scenario, rounds: usize) -> Result<Measured> {
    let mut measured = Measured::new(*scenario);
    for round in 0..rounds {
        let mut ways = Way::ALL;
        // Two on each time: five rounds then reach every part of the order.
        ways.rotate_left((2 * round) % Way::ALL.len());
        for (turn, way) in ways.into_iter().enumerate() {
            child::check_interrupted()?;
            let number = round * ways.len() + turn;
            let population = Population::make(docker, scenario, number)?;
            let took = population.release(way, creel)?;
            println!("{} round {}: {way}: {:.2} s", scenario.name, round + 1, took.as_secs_f64());
            measured.add(way, took);
        }
    }
    Ok(measured)
}
