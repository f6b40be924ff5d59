//! A socket that hangs, resets, loses answers or gives half of them.

use std::time::Duration;

use creel_testkit::docker::{ContainerSpec, concurrently};
use creel_testkit::engine::Engine;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use crate::crash::Taken;
use crate::support::{Home, PATIENCE, unique};

/// More than any limit these tests set, less than any default.
const SOON: Duration = Duration::from_secs(15);

/// The kinds that live on an engine, with the request that makes them.
const CREATES: [(Taken, &str); 3] = [
    (Taken::Container, r"/containers/create"),
    (Taken::Network, r"/networks/create"),
    (Taken::Volume, r"/volumes/create"),
];

fn wired() -> (Engine, Wire, Home) {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 1).unwrap();
    let home = Home::on(&wire.engine());
    home.configure("[docker]\ntimeout = \"2s\"\n");
    (engine, wire, home)
}

#[test]
fn an_engine_that_does_not_answer_a_list_is_unreachable_and_never_empty() {
    let status = Fault::Status { code: 500, message: "out of order".to_owned() };
    for path in ["/(_ping|version)", "/containers/json", "/networks", "/volumes", "/images/json"] {
        for fault in [Fault::Hang, Fault::Reset, Fault::HalfBody, status.clone()] {
            let (_, wire, home) = wired();
            let rule = wire.add(Rule::new(&format!(r"{path}(\?|$)"), fault.clone()));
            let listed = home.creel.run(["ls", "--provider", "docker", "--json"]).expect_code(7);
            assert!(rule.fired() > 0, "{path} {fault:?} did not fire\n{listed}");
            assert!(listed.took < SOON, "{path} {fault:?}\n{listed}");
            let unreachable = listed.json()["unreachable"].as_array().unwrap().len();
            assert_eq!(unreachable, 1, "{path} {fault:?}\n{listed}");
        }
    }
}

#[test]
fn a_sweep_on_an_engine_that_does_not_list_releases_nothing_and_says_so() {
    for fault in [Fault::Hang, Fault::Reset, Fault::HalfBody] {
        let (_, wire, home) = wired();
        wire.add(Rule::new(r"/containers/json", fault));
        let swept = home.creel.run(["sweep", "--label", "faults.none", "--apply"]).expect_code(7);
        assert!(swept.took < SOON, "{swept}");
    }
}

#[test]
fn a_release_that_hangs_delays_no_other_and_is_finished_by_the_next_sweep() {
    let (engine, wire, home) = wired();
    let label = unique("faults.hanging");
    let ids = concurrently(&[0, 1, 2], 3, |n| {
        let spec = ContainerSpec::sleeping(&format!("{label}-{n}"));
        engine.docker().create(&spec.label(&label, ""))
    });
    let ids = ids.unwrap();
    let rule = wire.add(Rule::new(&ids[0], Fault::Hang).method("DELETE"));
    let sweep = ["sweep", "--label", &label, "--apply", "--json", "--retry-deadline"];
    let swept = home.creel.run([&sweep[..], &["2s"]].concat()).expect_code(7);
    assert!(rule.fired() > 0 && swept.took < SOON, "{swept}");
    let report = swept.json();
    assert_eq!((&report["gone"], &report["failed"]), (&2.into(), &1.into()), "{swept}");
    wire.heal();
    let report = home.creel.run([&sweep[..], &["30s"]].concat()).expect_code(0).json();
    assert_eq!(report["gone"], 1);
}

#[test]
fn half_an_answer_to_a_look_is_asked_for_again() {
    let (engine, wire, home) = wired();
    let label = unique("faults.half");
    let spec = ContainerSpec::sleeping(&label).label(&label, "");
    let id = engine.docker().create(&spec).unwrap();
    for fault in [Fault::HalfBody, Fault::Reset] {
        wire.add(Rule::new(&format!("{id}/json"), fault).times(1));
    }
    let sweep = ["sweep", "--label", &label, "--apply", "--json", "--retry-delay", "50ms"];
    let report = home.creel.run(sweep).expect_code(0).json();
    assert_eq!(report["gone"], 1, "{report}");
    assert!(engine.docker().inspect_container(&id).unwrap().is_none());
}

/// Takes one thing through a wire whose create goes wrong; returns how the command ended and
/// what the ledger says of the one resource.
fn take(taken: Taken, path: &str, fault: Fault) -> (Option<i32>, Vec<String>, Home) {
    let (engine, wire, home) = wired();
    let rule = wire.add(Rule::new(path, fault).method("POST").times(1));
    let hold = ["dev", "hold", "--no-watchdog", "--for", "0s"];
    let output = home.creel.run([&hold[..], taken.flags()].concat());
    assert_eq!(rule.fired(), 1, "{output}");
    let records = home.records();
    assert_eq!(records.len(), 1, "{output}");
    let events = home.events(records[0]["resource"].as_str().unwrap());
    let events = events.iter().map(|event| event["event"].as_str().unwrap().to_owned());
    (output.code(), events.collect(), home.moved_to(&engine))
}

#[test]
fn a_create_whose_answer_is_lost_is_found_again() {
    for fault in [Fault::LoseResponse, Fault::HalfBody] {
        for (taken, path) in CREATES {
            let (code, events, home) = take(taken, path, fault.clone());
            let story = format!("{taken:?} {fault:?}: {code:?} {events:?}");
            // A container is only whole when it runs, so one that was not started is given back.
            let expected = if taken == Taken::Container { 7 } else { 0 };
            assert_eq!(code, Some(expected), "{story}");
            assert_eq!(events, ["intended", "found", "release_requested", "verified_gone"]);
            assert!(home.on_engine(&Engine::from_env()).is_empty(), "{story}");
        }
    }
}

#[test]
fn a_create_that_lands_after_its_client_was_cut_is_found_and_given_back() {
    for (taken, path) in CREATES {
        let fault = Fault::CutAfterSend { after: Duration::from_millis(1) };
        let (_, events, home) = take(taken, path, fault);
        let given_back = eventually(PATIENCE, || {
            home.reconcile_or_wait();
            home.open_records().is_empty()
        });
        assert!(given_back, "{taken:?} {events:?}");
        assert!(home.on_engine(&Engine::from_env()).is_empty(), "{taken:?} {events:?}");
    }
}

#[test]
fn a_container_whose_start_was_not_answered_is_given_back() {
    for fault in [Fault::LoseResponse, Fault::Reset] {
        let (code, events, home) = take(Taken::Container, "/containers/[^/]*/start", fault);
        assert_eq!(code, Some(7), "{events:?}");
        home.configure("[ledger]\nintent_window = \"0s\"\n");
        home.creel.run(["reconcile"]).expect_code(0);
        assert!(home.open_records().is_empty(), "{events:?}");
    }
}

#[test]
fn a_create_that_never_reached_the_engine_stays_an_open_intent_until_its_window_ends() {
    for (taken, path) in CREATES {
        let (code, events, home) = take(taken, path, Fault::Reset);
        assert_eq!(code, Some(7), "{taken:?} {events:?}");
        assert_eq!(events, ["intended"], "{taken:?}");
        let waiting = home.creel.run(["reconcile"]).expect_code(3);
        assert!(waiting.stderr.contains("may still land"), "{waiting}");
        assert_eq!(home.open_records().len(), 1, "{taken:?}");
        home.configure("[ledger]\nintent_window = \"0s\"\n");
        home.creel.run(["reconcile"]).expect_code(0);
        assert!(home.open_records().is_empty(), "{taken:?}");
    }
}
