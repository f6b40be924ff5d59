//! A sweep that is killed in the middle: the same sweep finishes it.

use std::time::Duration;

use creel_testkit::docker::Labels;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use super::bench::{Bench, results};

#[test]
fn a_sweep_of_foreign_things_that_was_killed_is_finished_by_the_same_sweep() {
    let bench = Bench::new();
    // One at a time, so that some are gone and others are not begun.
    bench.configure("[release]\nconcurrency = 1\n");
    let foreign = Labels::from([(bench.key(), bench.named("x"))]);
    let stranger = bench.docker().create_volume(&bench.named("-stranger"), &foreign).unwrap();
    for number in 0..6 {
        bench.exited(&format!("-c{number}"));
        bench.volume(&format!("-v{number}"));
    }
    bench.network("-n");
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let slow = Fault::Delay { by: Duration::from_millis(400) };
    let deletes = wire.add(Rule::new("/", slow).method("DELETE"));
    let line = format!("sweep --apply --json --label {}", bench.label());
    let creel = bench.creel().env("DOCKER_HOST", wire.host());
    let running = creel.spawn(line.split_whitespace());
    assert!(eventually(Duration::from_secs(30), || deletes.fired() >= 3), "{}", running.stderr());
    running.kill();
    let preview = format!("sweep --json --label {}", bench.label());
    let left = results(&bench.run(&preview).expect_code(0), "planned");
    assert!(!left.is_empty() && left.len() < 13, "it was not killed in the middle: {left:?}");

    // What creel did not make is not on record: reconcile has nothing to do with it.
    let reconciled = bench.run("reconcile --json").expect_code(0);
    assert_eq!(results(&reconciled, "gone"), [""; 0]);
    bench.run(&line).expect_code(0);
    let again = bench.run(&preview).expect_code(0);
    assert_eq!(results(&again, "planned"), [""; 0], "{again}");
    assert!(bench.docker().inspect_volume(&stranger).unwrap().is_some(), "it was not meant");
}
