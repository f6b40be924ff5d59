//! The cost of a guard: the same work with and without it, on one engine.
//!
//! Each part is measured in pairs, once directly and once through a guard that runs for the whole
//! benchmark. The pairs begin with one or the other in turn.

mod attach;
mod report;
mod stage;
mod work;

use std::time::Duration;

use anyhow::{Result, bail};
use creel_testkit::engine::PrivateEngine;

use super::machine::{self, MachineInfo};
use super::{Effort, page};
use crate::step::step;
use crate::{child, engine, packages};

use report::{Crowd, GuardResults, Small};
use stage::GuardStage;
use work::Work;

/// The parts besides the [`Work`]s.
const SMALL: &str = "small";
const CROWD: &str = "crowd";

/// Measures on a fresh engine, writes the results and checks the bars.
pub(super) fn run(effort: &Effort) -> Result<()> {
    let known = Work::ALL.iter().any(|work| effort.wants(work.name()));
    if !known && !effort.wants(SMALL) && !effort.wants(CROWD) {
        let names: Vec<&str> = Work::ALL.iter().map(|work| work.name()).collect();
        bail!("no such part; there are: {}, {SMALL}, {CROWD}", names.join(", "));
    }
    step("packages", packages::install_missing)?;
    engine::with_engine(|engine| step("guard", || run_on(engine, effort)))
}

fn run_on(engine: &PrivateEngine, effort: &Effort) -> Result<()> {
    let stage = GuardStage::set(engine, &effort.binary())?;
    let mut pairs = Vec::new();
    for work in Work::ALL.into_iter().filter(|work| effort.wants(work.name())) {
        pairs.push((work, measure(&stage, work, effort.rounds)?));
    }
    let small = effort.wants(SMALL).then(|| small(&stage)).transpose()?;
    let crowd = effort.wants(CROWD).then(|| crowd(&stage)).transpose()?;
    let results = GuardResults {
        pairs,
        small,
        crowd,
        idle: stage.idle_processor_time()?,
        memory: stage.peak_memory()?,
        rounds: effort.rounds,
        machine: MachineInfo::here(),
        engine: machine::engine(&engine.engine().docker())?,
    };
    stage.end()?;
    let text = report::render(&results)?;
    println!("{text}");
    if effort.is_whole() {
        page::write("guard", &text)?;
    }
    report::check(&results)
}

/// The durations of one work: directly, and through the guard.
type PairedFigures = [Vec<Duration>; 2];

fn measure(stage: &GuardStage, work: Work, rounds: usize) -> Result<PairedFigures> {
    work.prepare(stage)?;
    let mut figures = PairedFigures::default();
    for round in 0..rounds {
        for turn in 0..2 {
            child::check_interrupted()?;
            let variant = (round + turn) % 2;
            let took = work.run(stage, stage.engine(variant))?;
            println!(
                "{} round {}: {}: {:.2?}",
                work.name(),
                round + 1,
                stage::VARIANTS[variant],
                took
            );
            figures[variant].push(took);
        }
    }
    Ok(figures)
}

/// Measures what is too short for pairs of runs: single requests and single bytes, in turn.
fn small(stage: &GuardStage) -> Result<Small> {
    Ok(Small { ping: work::pings(stage)?, echo: attach::echoes(stage)? })
}

fn crowd(stage: &GuardStage) -> Result<Crowd> {
    let (count, took) = attach::crowd(stage)?;
    Ok(Crowd { count, took })
}
