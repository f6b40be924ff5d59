//! How fast creel releases, against every other way on the same engine.
//!
//! Each round measures every way once, each on a fresh population of the same
//! make, and starts with another way than the round before: whatever slows the
//! machine down for a while hits all of them. Only the least concurrent raw
//! ways, which show the slope and never the limit, are measured in one round.
//!
//! Engines of this age lock up now and then when many containers end at once, whoever ends them.
//! Such a measurement is thrown away: the engine is started again, and the way is measured again.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::docker::Docker;
use creel_testkit::engine::PrivateEngine;
use rustix::process::{Pid, Signal, kill_process};

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
/// An engine that has not made a population after this long has locked up.
const LOCKED_WHILE_MAKING: Duration = Duration::from_secs(90);
/// An engine that has not released one after this long has, too.
const LOCKED_WHILE_RELEASING: Duration = Duration::from_secs(60);
/// How often one measurement is begun again for that.
const MOST_LOCK_UPS: usize = 5;
/// A sweep that takes longer than this has hung.
const SWEEP_DEADLINE: Duration = Duration::from_secs(300);

/// Measures on a fresh engine, writes the results and checks the bar.
pub(super) fn run(effort: &Effort) -> Result<()> {
    step("packages", packages::install_missing)?;
    engine::with_engine(|engine| step("sweep", || run_on(engine, effort)))
}

fn run_on(engine: &mut PrivateEngine, effort: &Effort) -> Result<()> {
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
        let bench = Bench { docker: &docker, creel: &creel, engine };
        measured.push(bench.measure(scenario, effort.rounds)?);
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

/// What is measured on.
struct Bench<'a> {
    docker: &'a Docker,
    creel: &'a Creel,
    engine: &'a mut PrivateEngine,
}

impl Bench<'_> {
    fn measure(mut self, scenario: &Scenario, rounds: usize) -> Result<Measured> {
        let mut measured = Measured::new(*scenario);
        let mut number = 0;
        for round in 0..rounds {
            let mut ways: Vec<Way> =
                Way::ALL.into_iter().filter(|way| round == 0 || !way.is_measured_once()).collect();
            // One on each time: whatever comes last in one round comes earlier in the next.
            let first = round % ways.len();
            ways.rotate_left(first);
            for way in ways {
                let took = self.measure_way(scenario, way, &mut number)?;
                let seconds = took.as_secs_f64();
                println!("{} round {}: {way}: {seconds:.2} s", scenario.name, round + 1);
                measured.add(way, took);
            }
        }
        Ok(measured)
    }

    /// Measures one way, again if the engine locks up meanwhile.
    fn measure_way(
        &mut self,
        scenario: &Scenario,
        way: Way,
        number: &mut usize,
    ) -> Result<Duration> {
        for _ in 0..MOST_LOCK_UPS {
            child::check_interrupted()?;
            *number += 1;
            if let Some(took) = self.try_way(scenario, way, *number)? {
                return Ok(took);
            }
            println!("{}: {way}: the engine locked up, and is started again", scenario.name);
            self.engine.restart()?;
            self.remove_all()?;
        }
        bail!("the engine locked up {MOST_LOCK_UPS} times in a row")
    }

    /// Measures one way on a population of its own; `None` when the engine locked up.
    fn try_way(&self, scenario: &Scenario, way: Way, number: usize) -> Result<Option<Duration>> {
        // Containers that end by themselves lock it up as well, so their making is watched too.
        let watch = LockUpWatch::start(self.engine, LOCKED_WHILE_MAKING);
        let population = Population::make(self.docker, scenario, number);
        if watch.has_fired() {
            return Ok(None);
        }
        let population = population?;
        let watch = LockUpWatch::start(self.engine, LOCKED_WHILE_RELEASING);
        let released = population.release(way, self.creel);
        if watch.has_fired() { Ok(None) } else { released.map(Some) }
    }

    fn remove_all(&self) -> Result<()> {
        let left = self.docker.cli(&["ps", "-aq"])?;
        let ids = String::from_utf8(left.stdout)?;
        let ids: Vec<&str> = ids.split_whitespace().collect();
        if !ids.is_empty() {
            self.docker.cli(&[&["rm", "-fv"], &ids[..]].concat())?;
        }
        Ok(())
    }
}

/// Kills an engine that does not get a population released.
struct LockUpWatch {
    done: mpsc::Sender<()>,
    watcher: thread::JoinHandle<bool>,
}

impl LockUpWatch {
    fn start(engine: &PrivateEngine, patience: Duration) -> Self {
        let (done, ended) = mpsc::channel();
        let process = engine.process();
        let watcher = thread::spawn(move || {
            let is_locked_up = ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if let Some(process) = process.filter(|_| is_locked_up).and_then(pid) {
                // One that died by itself meanwhile is noticed by whoever starts it again.
                let _ = kill_process(process, Signal::KILL);
            }
            is_locked_up
        });
        Self { done, watcher }
    }

    /// Ends the watch, and returns whether the engine had to be killed.
    fn has_fired(self) -> bool {
        // A watcher that has fired does not listen any more.
        let _ = self.done.send(());
        self.watcher.join().unwrap_or(false)
    }
}

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process).ok()?)
}
