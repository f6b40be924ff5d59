//! Unanswered creates under clocks that jump: what is waited for, and until when.

use std::path::Path;
use std::time::Duration;

use creel_model::crashpoint::Crashpoint;
use creel_testkit::creel::Creel;
use creel_testkit::engine::Engine;
use creel_testkit::image;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::{Value, json};

use crate::support::{Home, PATIENCE, assert_killed};

/// The library that shifts the wall clock of one process.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Returns the binary with its wall clock shifted and the boot clocks unchanged.
fn shifted(creel: &Creel, by: &str) -> Creel {
    assert!(Path::new(FAKETIME).exists(), "the suite's packages are not installed: {FAKETIME}");
    let creel = creel.clone().env("LD_PRELOAD", FAKETIME).env("FAKETIME", by);
    creel.env("DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1")
}

#[test]
fn a_create_that_lands_late_is_released_though_the_clock_jumped_a_day() {
    let engine = Engine::from_env();
    for by in ["+1d", "-1d"] {
        let wire = Wire::start(&engine, 1).unwrap();
        let late = Fault::Delay { by: Duration::from_secs(6) };
        let create = wire.add(Rule::new("/containers/create", late).method("POST"));
        let home = Home::on(&wire.engine());
        let hold = ["dev", "hold", "--no-watchdog", "--container", image::REFERENCE];
        let running = home.creel.spawn(hold);
        assert!(eventually(PATIENCE, || create.fired() == 1), "{}", running.stderr());
        assert_killed(&running.kill());
        let jumped = shifted(&home.creel, by);
        let waiting = jumped.run(["reconcile", "--json"]).expect_code(3);
        let report = waiting.json();
        assert_eq!((&report["open_intents"], &report["closed_intents"]), (&json!(1), &json!(0)));
        let name = home.open_records()[0]["name"].as_str().unwrap().to_owned();
        assert_eq!(report["waiting"][0]["name"], json!(name), "{report}");
        assert!(waiting.stderr.contains(&format!("container {name} may still land")), "{waiting}");

        let landed = || !home.on_engine(&engine).is_empty();
        assert!(eventually(PATIENCE, landed), "the create did not land");
        let report = jumped.run(["reconcile", "--json"]).expect_code(0).json();
        assert_eq!(report["items"][0]["result"], "gone", "{report}");
        assert!(!landed() && home.open_records().is_empty());
    }
}

#[test]
fn an_intent_for_a_process_or_a_directory_of_a_dead_owner_is_closed_at_once() {
    for flag in ["--process", "--directory"] {
        let home = Home::without_engine();
        let (output, reached) = home.hold_until(Crashpoint::AfterIntent, &["--no-watchdog", flag]);
        assert!(reached, "{output}");
        assert_eq!(home.open_records()[0]["state"], "intended");
        let report = home.creel.run(["reconcile", "--json"]).expect_code(0).json();
        assert_eq!((&report["open_intents"], &report["closed_intents"]), (&json!(0), &json!(1)));
        assert!(home.open_records().is_empty());
        let evidence: Value = home.last_events().last().unwrap()["evidence"].clone();
        assert!(evidence.as_str().unwrap().contains("has died"), "{evidence}");
    }
}
