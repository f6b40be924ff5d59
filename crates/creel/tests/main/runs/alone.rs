//! Many concurrent runs: each has an outcome, and nothing is left of any.
//!
//! The suite runs tests of modules with this name after all others, one at a time: hundreds of
//! processes at once make other tests miss their deadlines.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use creel_testkit::creel::Running;
use creel_testkit::wait::eventually;
use serde_json::Value;

use super::run_fixture::{RunFixture, agent};

/// The number of concurrent runs.
const RUNS: usize = 200;
/// The number of runs that may be before their first turn at a time.
const STARTING: usize = 12;
/// The time limit of all runs together, on two busy cores.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns how many agents have started.
fn arrived(fixture: &RunFixture) -> usize {
    fs::read_dir(fixture.home.path("arrived")).unwrap().count()
}

#[test]
fn two_hundred_runs_at_once_end_with_two_hundred_outcomes_and_nothing_left() {
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.home.creel = fixture.home.creel.clone().deadline(PATIENCE);
    fs::create_dir(fixture.home.path("arrived")).unwrap();
    let (place, gate) = (fixture.home.path("arrived"), fixture.home.path("gate"));
    let script = format!(
        "mktemp {}/XXXXXX; until [ -e {} ]; do sleep 1; done; echo done",
        place.display(),
        gate.display()
    );
    let path = fixture.workflow("10m", &agent(&script));
    let args = || ["run".as_ref(), "--json".as_ref(), path.as_os_str()];
    let began = Instant::now();
    let mut drivers: Vec<Running> = Vec::with_capacity(RUNS);
    while drivers.len() < RUNS {
        let room = eventually(PATIENCE, || drivers.len() < arrived(&fixture) + STARTING);
        assert!(room, "{} began, {} arrived", drivers.len(), arrived(&fixture));
        drivers.push(fixture.home.creel.spawn(args()));
    }
    let all = eventually(PATIENCE, || arrived(&fixture) == RUNS);
    assert!(all, "only {} arrived", arrived(&fixture));
    let started = began.elapsed();
    // All of them are in progress at this moment.
    assert!(drivers.iter_mut().all(|driver| !driver.has_ended()));
    fs::write(&gate, "").unwrap();
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for driver in drivers {
        let report = driver.wait().expect_code(0).json();
        assert_eq!(report["certificate"]["left"], Value::Array(Vec::new()));
        assert_eq!(report["certificate"]["verified"], true, "{report:#}");
        *outcomes.entry(report["phase"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    println!("report: {RUNS} runs began in {started:?}, ended after {:?}", began.elapsed());
    assert_eq!(outcomes, BTreeMap::from([("succeeded".to_owned(), RUNS)]));
    let listed = fixture.home.creel.run(["runs", "--phase", "succeeded", "--json"]).json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), RUNS);
    fixture.home.await_quiet();
    fixture.assert_nothing_left();
}
