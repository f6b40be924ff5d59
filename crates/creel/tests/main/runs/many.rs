//! Many runs at once: each of them has its outcome, and nothing is left of any.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use creel_model::provider::ProviderName;
use creel_testkit::creel::Running;
use creel_testkit::wait::eventually;
use serde_json::Value;

use super::stage::{Stage, agent};

/// How many runs there are at once.
const RUNS: usize = 200;
/// How many may be on their way to their first turn at a time.
const STARTING: usize = 12;
/// How long all of them may take together, on two busy cores.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns how many of the agents are there.
fn arrived(stage: &Stage) -> usize {
    fs::read_dir(stage.home.path("arrived")).unwrap().count()
}

#[test]
fn two_hundred_runs_at_once_end_with_two_hundred_outcomes_and_nothing_left() {
    let mut stage = Stage::set(ProviderName::Process);
    stage.home.creel = stage.home.creel.clone().deadline(PATIENCE);
    fs::create_dir(stage.home.path("arrived")).unwrap();
    let (place, gate) = (stage.home.path("arrived"), stage.home.path("gate"));
    let script = format!(
        "mktemp {}/XXXXXX; until [ -e {} ]; do sleep 1; done; echo done",
        place.display(),
        gate.display()
    );
    let path = stage.workflow("10m", &agent(&script));
    let words = || ["run".as_ref(), "--json".as_ref(), path.as_os_str()];
    let began = Instant::now();
    let mut drivers: Vec<Running> = Vec::with_capacity(RUNS);
    while drivers.len() < RUNS {
        let room = eventually(PATIENCE, || drivers.len() < arrived(&stage) + STARTING);
        assert!(room, "{} began, {} arrived", drivers.len(), arrived(&stage));
        drivers.push(stage.home.creel.spawn(words()));
    }
    let all = eventually(PATIENCE, || arrived(&stage) == RUNS);
    assert!(all, "only {} arrived", arrived(&stage));
    let started = began.elapsed();
    // All of them are under way at this moment.
    assert!(drivers.iter_mut().all(|driver| !driver.has_ended()));
    fs::write(&gate, "").unwrap();
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for driver in drivers {
        let told = driver.wait().expect_code(0).json();
        assert_eq!(told["certificate"]["left"], Value::Array(Vec::new()));
        assert_eq!(told["certificate"]["verified"], true, "{told:#}");
        *outcomes.entry(told["phase"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    println!("report: {RUNS} runs began in {started:?}, ended after {:?}", began.elapsed());
    assert_eq!(outcomes, BTreeMap::from([("succeeded".to_owned(), RUNS)]));
    let listed = stage.home.creel.run(["runs", "--phase", "succeeded", "--json"]).json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), RUNS);
    stage.home.await_quiet();
    stage.assert_nothing_left();
}
