//! Recovery of resources that depend on each other.

use std::time::Duration;

use creel_testkit::docker::ContainerSpec;
use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use crate::support::{Home, PATIENCE, assert_killed, unique};

fn delay(milliseconds: u64) -> Fault {
    Fault::Delay { by: Duration::from_millis(milliseconds) }
}

#[test]
fn a_network_is_released_after_a_container_that_is_being_started() {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 1).unwrap();
    // The start lands between the search for the container and its release. The network is
    // inspected in that time.
    let start = wire.add(Rule::new("/start", delay(400)).method("POST"));
    wire.add(Rule::new("/networks/[0-9a-f]{64}", delay(800)).method("GET"));
    wire.add(Rule::new("/containers/", delay(1200)).method("DELETE"));
    let home = Home::on(&wire.engine());
    let hold = ["dev", "hold", "--no-watchdog", "--network", "--container", image::REFERENCE];
    let running = home.creel.spawn(hold);
    assert!(eventually(PATIENCE, || start.fired() == 1), "{}", running.stderr());
    assert_killed(&running.kill());
    home.creel.run(["reconcile"]).expect_code(0);
    assert!(home.open_records().is_empty());
    assert!(home.on_engine(&engine).is_empty());
}

#[test]
fn a_network_with_a_foreign_user_is_retried_and_released_when_the_user_is_gone() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    let holding = home.hold(&["--network", "--no-watchdog"]);
    let network = holding.report["held"][0]["name"].as_str().unwrap().to_owned();
    let guest = ContainerSpec::sleeping(&unique("recovery.guest")).network(&network);
    let guest = engine.docker().run(&guest).unwrap();
    assert_killed(&holding.running.kill());
    let refused = home.creel.run(["reconcile", "--json"]).expect_code(3).json();
    let item = &refused["items"][0];
    assert_eq!(item["result"], "failed", "{refused}");
    assert!(item["reason"].as_str().unwrap().contains(&guest), "{refused}");
    assert_eq!(home.open_records()[0]["state"], "releasing");
    engine.docker().remove_container(&guest).unwrap();
    home.creel.run(["reconcile"]).expect_code(0);
    assert!(home.open_records().is_empty());
}

/// Acquires a volume and a container that uses it, and ends the supervisor while the create of
/// the container is in progress. Returns the name of the volume.
fn ended_during_a_create(home: &Home, wire: &Wire, alone: &[&str], signal: &str) -> String {
    let create = wire.add(Rule::new("/containers/create", delay(1500)).method("POST"));
    let hold = ["dev", "hold", "--volume", "--container", image::REFERENCE];
    let running = home.creel.spawn([&hold[..], alone].concat());
    assert!(eventually(PATIENCE, || create.fired() == 1), "{}", running.stderr());
    running.signal(signal);
    running.wait();
    let records = home.records();
    let volume = records.iter().find(|record| record["kind"] == "volume").unwrap();
    volume["name"].as_str().unwrap().to_owned()
}

#[test]
fn a_volume_recreated_by_a_late_container_is_released_again() {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 2).unwrap();
    let home = Home::on(&wire.engine());
    let volume = ended_during_a_create(&home, &wire, &["--no-watchdog"], "KILL");
    // The volume is released at once, and recreated with the container.
    let waiting = home.creel.run(["reconcile"]).expect_code(3);
    assert!(waiting.stderr.contains("may still land"), "{waiting}");
    assert!(engine.docker().inspect_volume(&volume).unwrap().is_none());
    let back = || engine.docker().inspect_volume(&volume).unwrap().is_some();
    assert!(eventually(PATIENCE, back), "the engine made no volume of its own");
    home.creel.run(["reconcile"]).expect_code(0);
    assert!(engine.docker().inspect_volume(&volume).unwrap().is_none(), "the volume is left");
    assert!(home.open_records().is_empty() && home.on_engine(&engine).is_empty());
}

#[test]
fn a_supervisor_that_ends_during_a_create_leaves_no_volume_without_an_owner() {
    let engine = Engine::from_env();
    for signal in ["KILL", "TERM"] {
        let wire = Wire::start(&engine, 3).unwrap();
        let home = Home::on(&wire.engine());
        let volume = ended_during_a_create(&home, &wire, &[], signal);
        home.await_quiet();
        assert!(engine.docker().inspect_volume(&volume).unwrap().is_none(), "{signal}");
        assert!(home.open_records().is_empty() && home.on_engine(&engine).is_empty(), "{signal}");
    }
}
