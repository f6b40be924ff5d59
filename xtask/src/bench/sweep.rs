//! How fast creel releases, compared with every other method on the same engine.
//!
//! Each round measures every method once, each on a fresh population of the same composition, and
//! starts with a different method than the previous round. So a temporary slowdown of the machine
//! affects all of them. Only the least concurrent raw methods, which show the slope and never the
//! limit, are measured in one round.
//!
//! Engines of this age lock up now and then when many containers end at once, whichever method ends
//! them. Such a measurement is discarded: the engine is restarted, and the method is measured
//! again.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::docker::Docker;
use creel_testkit::engine::PrivateEngine;
use rustix::process::{Pid, Signal, kill_process};

use super::machine::{self, MachineInfo};
use super::methods::{Population, PopulationSpec, ReleaseMethod, sequential_each};
use super::report::{Measured, SweepResults};
use super::{Effort, memory, page, report};
use crate::step::step;
use crate::{child, engine, packages};

const SCENARIOS: [PopulationSpec; 3] = [
    PopulationSpec {
        name: "running",
        title: "100 running containers whose PID 1 ignores SIGTERM",
        running: 100,
        exited: 0,
        created: 0,
        networks: 0,
        volumes: 0,
    },
    PopulationSpec {
        name: "exited",
        title: "100 exited containers",
        running: 0,
        exited: 100,
        created: 0,
        networks: 0,
        volumes: 0,
    },
    PopulationSpec {
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
/// The number of containers that the slowest method is measured on.
pub(super) const SEQUENTIAL_SAMPLE: usize = 3;
/// The time after which an engine that has not created a population counts as locked up.
const LOCKED_WHILE_MAKING: Duration = Duration::from_secs(90);
/// The time after which an engine that has not released a population counts as locked up.
const LOCKED_WHILE_RELEASING: Duration = Duration::from_secs(60);
/// The maximum number of attempts at one measurement.
const MOST_LOCK_UPS: usize = 5;
/// The time after which a sweep counts as hung.
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
    let scenarios: Vec<&PopulationSpec> = SCENARIOS.iter().filter(|one| wanted(one.name)).collect();
    if scenarios.is_empty() && !wanted(MEMORY) {
        bail!("no such part; there are: {}, {MEMORY}", SCENARIOS.map(|one| one.name).join(", "));
    }
    let mut measured = Vec::new();
    for scenario in &scenarios {
        let bench = SweepBench { docker: &docker, creel: &creel, engine };
        measured.push(bench.measure(scenario, effort.rounds)?);
    }
    let results = SweepResults {
        sequential: scenarios
            .iter()
            .any(|scenario| scenario.running > 0)
            .then(|| sequential_each(&docker, SEQUENTIAL_SAMPLE))
            .transpose()?,
        measured,
        memory: if wanted(MEMORY) { memory::peaks(&effort.binary(), &home)? } else { Vec::new() },
        rounds: effort.rounds,
        machine: MachineInfo::here(),
        engine: machine::engine(&docker)?,
    };
    let text = report::render(&results)?;
    println!("{text}");
    if effort.is_whole() {
        page::write("sweep", &text)?;
    }
    report::check(&results)
}

/// The programs and the engine under measurement.
struct SweepBench<'a> {
    docker: &'a Docker,
    creel: &'a Creel,
    engine: &'a mut PrivateEngine,
}

impl SweepBench<'_> {
    fn measure(mut self, scenario: &PopulationSpec, rounds: usize) -> Result<Measured> {
        let mut measured = Measured::new(*scenario);
        let mut number = 0;
        for round in 0..rounds {
            let mut methods: Vec<ReleaseMethod> = ReleaseMethod::ALL
                .into_iter()
                .filter(|method| round == 0 || !method.is_measured_once())
                .collect();
            // Rotate by one each round, so that the last method of one round comes earlier in the
            // next.
            let first = round % methods.len();
            methods.rotate_left(first);
            for method in methods {
                let took = self.measure_method(scenario, method, &mut number)?;
                let seconds = took.as_secs_f64();
                println!("{} round {}: {method}: {seconds:.2} s", scenario.name, round + 1);
                measured.add(method, took);
            }
        }
        Ok(measured)
    }

    /// Measures one method, and repeats it if the engine locks up meanwhile.
    fn measure_method(
        &mut self,
        scenario: &PopulationSpec,
        method: ReleaseMethod,
        number: &mut usize,
    ) -> Result<Duration> {
        for _ in 0..MOST_LOCK_UPS {
            child::check_interrupted()?;
            *number += 1;
            if let Some(took) = self.try_method(scenario, method, *number)? {
                return Ok(took);
            }
            println!("{}: {method}: the engine locked up, and is started again", scenario.name);
            self.engine.restart()?;
            self.remove_all()?;
        }
        bail!("the engine locked up {MOST_LOCK_UPS} times in a row")
    }

    /// Measures one method on its own population. Returns `None` if the engine locked up.
    fn try_method(
        &self,
        scenario: &PopulationSpec,
        method: ReleaseMethod,
        number: usize,
    ) -> Result<Option<Duration>> {
        // Containers that end by themselves also cause lock-ups, so their creation is watched too.
        let watch = LockUpWatch::start(self.engine, LOCKED_WHILE_MAKING);
        let population = Population::make(self.docker, scenario, number);
        if watch.has_fired() {
            return Ok(None);
        }
        let population = population?;
        let watch = LockUpWatch::start(self.engine, LOCKED_WHILE_RELEASING);
        let released = population.release(method, self.creel);
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

/// Kills an engine that does not create or release a population in time.
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
                // If the engine died by itself meanwhile, the restart notices it.
                let _ = kill_process(process, Signal::KILL);
            }
            is_locked_up
        });
        Self { done, watcher }
    }

    /// Ends the watch, and returns whether the engine had to be killed.
    fn has_fired(self) -> bool {
        // A watcher that has fired does not receive any more.
        let _ = self.done.send(());
        self.watcher.join().unwrap_or(false)
    }
}

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process).ok()?)
}
