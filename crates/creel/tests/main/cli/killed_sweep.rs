//! A sweep that is killed in the middle: the same sweep finishes it.

use std::time::Duration;

use creel_testkit::docker::Labels;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use super::fixture::{CliFixture, results};

#[test]
fn a_killed_sweep_of_foreign_objects_is_finished_by_the_same_sweep() {
    let fixture = CliFixture::new();
    // One at a time, so that some are gone and others are not started.
    fixture.configure("[release]\nconcurrency = 1\n");
    let foreign = Labels::from([(fixture.key(), fixture.named("x"))]);
    let unselected = fixture.docker().create_volume(&fixture.named("-stranger"), &foreign).unwrap();
    for number in 0..6 {
        fixture.exited(&format!("-c{number}"));
        fixture.volume(&format!("-v{number}"));
    }
    fixture.network("-n");
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let slow = Fault::Delay { by: Duration::from_millis(400) };
    let deletes = wire.add(Rule::new("/", slow).method("DELETE"));
    let line = format!("sweep --apply --json --label {}", fixture.label());
    let creel = fixture.creel().env("DOCKER_HOST", wire.host());
    let running = creel.spawn(line.split_whitespace());
    assert!(eventually(Duration::from_secs(30), || deletes.fired() >= 3), "{}", running.stderr());
    running.kill();
    let preview = format!("sweep --json --label {}", fixture.label());
    let left = results(&fixture.run(&preview).expect_code(0), "planned");
    assert!(!left.is_empty() && left.len() < 13, "it was not killed in the middle: {left:?}");

    // Foreign objects are not on record, so reconcile ignores them.
    let reconciled = fixture.run("reconcile --json").expect_code(0);
    assert_eq!(results(&reconciled, "gone"), [""; 0]);
    fixture.run(&line).expect_code(0);
    let again = fixture.run(&preview).expect_code(0);
    assert_eq!(results(&again, "planned"), [""; 0], "{again}");
    assert!(fixture.docker().inspect_volume(&unselected).unwrap().is_some(), "it was not selected");
}
