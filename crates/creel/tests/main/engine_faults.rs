//! A socket that hangs, resets, loses responses or cuts them in half.

use std::time::Duration;

use creel_testkit::docker::{ContainerSpec, concurrently};
use creel_testkit::engine::Engine;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use crate::crash::HeldKind;
use crate::support::{Home, PATIENCE, unique};

/// Longer than any limit that these tests set, and shorter than any default.
const SOON: Duration = Duration::from_secs(15);

/// The kinds of an engine, with the request that creates each.
const CREATES: [(HeldKind, &str); 3] = [
    (HeldKind::Container, r"/containers/create"),
    (HeldKind::Network, r"/networks/create"),
    (HeldKind::Volume, r"/volumes/create"),
];

fn engine_with_wire() -> (Engine, Wire, Home) {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 1).unwrap();
    let home = Home::on(&wire.engine());
    home.configure("[docker]\ntimeout = \"2s\"\n");
    (engine, wire, home)
}

#[test]
fn an_engine_that_fails_to_list_is_unreachable_and_never_empty() {
    let status = Fault::Status { code: 500, message: "out of order".to_owned() };
    for path in ["/(_ping|version)", "/containers/json", "/networks", "/volumes", "/images/json"] {
        for fault in [Fault::Hang, Fault::Reset, Fault::HalfBody, status.clone()] {
            let (_, wire, home) = engine_with_wire();
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
fn a_sweep_on_an_engine_that_fails_to_list_releases_nothing_and_reports_it() {
    for fault in [Fault::Hang, Fault::Reset, Fault::HalfBody] {
        let (_, wire, home) = engine_with_wire();
        wire.add(Rule::new(r"/containers/json", fault));
        let swept = home.creel.run(["sweep", "--label", "faults.none", "--apply"]).expect_code(7);
        assert!(swept.took < SOON, "{swept}");
    }
}

#[test]
fn a_release_that_hangs_delays_no_other_and_is_finished_by_the_next_sweep() {
    let (engine, wire, home) = engine_with_wire();
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
fn a_half_response_to_an_inspect_is_retried() {
    let (engine, wire, home) = engine_with_wire();
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

/// Acquires one resource through a wire whose create fails. Returns how the command ended and
/// the events of the only resource on the ledger.
fn take(held_kind: HeldKind, path: &str, fault: Fault) -> (Option<i32>, Vec<String>, Home) {
    let (engine, wire, home) = engine_with_wire();
    let rule = wire.add(Rule::new(path, fault).method("POST").times(1));
    let hold = ["dev", "hold", "--no-watchdog", "--for", "0s"];
    let output = home.creel.run([&hold[..], held_kind.flags()].concat());
    assert_eq!(rule.fired(), 1, "{output}");
    let records = home.records();
    assert_eq!(records.len(), 1, "{output}");
    let events = home.events(records[0]["resource"].as_str().unwrap());
    let events = events.iter().map(|event| event["event"].as_str().unwrap().to_owned());
    (output.code(), events.collect(), home.moved_to(&engine))
}

#[test]
fn a_create_whose_response_is_lost_is_found_again() {
    for fault in [Fault::LoseResponse, Fault::HalfBody] {
        for (held_kind, path) in CREATES {
            let (code, events, home) = take(held_kind, path, fault.clone());
            let story = format!("{held_kind:?} {fault:?}: {code:?} {events:?}");
            // A container is complete only when it runs, so one that was not started is released.
            let expected = if held_kind == HeldKind::Container { 7 } else { 0 };
            assert_eq!(code, Some(expected), "{story}");
            assert_eq!(events, ["intended", "found", "release_requested", "verified_gone"]);
            assert!(home.on_engine(&Engine::from_env()).is_empty(), "{story}");
        }
    }
}

#[test]
fn a_create_that_lands_after_its_client_was_cut_is_found_and_released() {
    for (held_kind, path) in CREATES {
        let fault = Fault::CutAfterSend { after: Duration::from_millis(1) };
        let (_, events, home) = take(held_kind, path, fault);
        let released = eventually(PATIENCE, || {
            home.reconcile_or_wait();
            home.open_records().is_empty()
        });
        assert!(released, "{held_kind:?} {events:?}");
        assert!(home.on_engine(&Engine::from_env()).is_empty(), "{held_kind:?} {events:?}");
    }
}

#[test]
fn a_container_whose_start_was_not_answered_is_released() {
    for fault in [Fault::LoseResponse, Fault::Reset] {
        let (code, events, home) = take(HeldKind::Container, "/containers/[^/]*/start", fault);
        assert_eq!(code, Some(7), "{events:?}");
        home.configure("[ledger]\nintent_window = \"0s\"\n");
        home.creel.run(["reconcile"]).expect_code(0);
        assert!(home.open_records().is_empty(), "{events:?}");
    }
}

#[test]
fn a_create_that_never_reached_the_engine_stays_an_open_intent_until_its_window_ends() {
    for (held_kind, path) in CREATES {
        let (code, events, home) = take(held_kind, path, Fault::Reset);
        assert_eq!(code, Some(7), "{held_kind:?} {events:?}");
        assert_eq!(events, ["intended"], "{held_kind:?}");
        let waiting = home.creel.run(["reconcile"]).expect_code(3);
        assert!(waiting.stderr.contains("may still land"), "{waiting}");
        assert_eq!(home.open_records().len(), 1, "{held_kind:?}");
        home.configure("[ledger]\nintent_window = \"0s\"\n");
        home.creel.run(["reconcile"]).expect_code(0);
        assert!(home.open_records().is_empty(), "{held_kind:?}");
    }
}
