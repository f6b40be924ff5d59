//! Sweeps on a real engine that fails, dies, is shared, or is interrupted.

use std::collections::BTreeSet;
use std::time::Duration;

use creel_testkit::creel::Output;
use creel_testkit::docker::{ContainerSpec, concurrently};
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::inventory::Inventory;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::Value;

use crate::support::{Home, unique};

/// Creates containers with a label, and never starts them.
fn make(engine: &Engine, label: &str, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|n| format!("{label}-{n}")).collect();
    let made = concurrently(&names, 8, |name| {
        engine.docker().create(&ContainerSpec::sleeping(name).label(label, ""))
    });
    made.unwrap()
}

/// Returns the ids of the existing objects with the label.
fn left(engine: &Engine, label: &str) -> BTreeSet<String> {
    Inventory::snapshot(engine).unwrap().with_label(label, "").ids().into_iter().collect()
}

fn ids_with(report: &Value, result: &str) -> BTreeSet<String> {
    let items = report["items"].as_array().unwrap().iter();
    let fitting = items.filter(|item| item["result"] == result);
    fitting.map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Asserts that nothing is reported gone that still exists, and returns the report.
#[track_caller]
fn assert_truthful(output: &Output, engine: &Engine, label: &str) -> Value {
    let report = output.json();
    let there = left(engine, label);
    let lied: Vec<_> = ids_with(&report, "gone").intersection(&there).cloned().collect();
    assert!(lied.is_empty(), "reported gone but there: {lied:?}\n{output}");
    report
}

#[test]
fn of_a_thousand_releases_with_a_tenth_of_the_calls_failing_under_one_percent_fail() {
    const RELEASES: usize = 1000;
    let label = &unique("sweeps.thousand");
    let engine = Engine::from_env();
    make(&engine, label, RELEASES);
    let wire = Wire::start(&engine, 1000).unwrap();
    let status = |code| Fault::Status { code, message: "injected".to_owned() };
    // One in ten in total, for deletes and inspects alike.
    let faults = [(0.04, status(500)), (0.03, status(503)), (0.02, Fault::Reset)];
    let faults = faults.into_iter().chain([(0.015, Fault::LoseResponse)]);
    let add = |(part, fault): (f64, Fault)| {
        let deletes = Rule::new(r"/containers/[0-9a-f]{64}\?", fault.clone()).method("DELETE");
        let inspects = Rule::new(r"/containers/[0-9a-f]{64}/json", fault).method("GET");
        [wire.add(deletes.probability(part)), wire.add(inspects.probability(part))]
    };
    let rules: Vec<_> = faults.flat_map(add).collect();
    let home = Home::on(&wire.engine());
    let creel = home.creel.clone().deadline(Duration::from_secs(150));
    let sweep = ["sweep", "--label", label, "--apply", "--json", "--retry-delay", "100ms"];
    let swept = creel.run(sweep);
    let report = assert_truthful(&swept, &engine, label);
    let fired: u64 = rules.iter().map(|rule| rule.fired()).sum();
    let (gone, failed) =
        (ids_with(&report, "gone").len(), RELEASES - ids_with(&report, "gone").len());
    println!(
        "report: {RELEASES} releases, {} requests, {fired} faults fired, {failed} failed, {:.1} s",
        wire.requests(),
        swept.took.as_secs_f64()
    );
    assert_eq!(report["planned"], RELEASES);
    assert!(fired >= 150, "only {fired} faults fired");
    assert!(failed * 100 < RELEASES, "{failed} of {RELEASES} failed");
    assert_eq!(swept.code() == Some(0), gone == RELEASES, "exit code {:?}", swept.code());
    wire.heal();
    creel.run(sweep).expect_code(0);
    assert!(left(&engine, label).is_empty());
}

#[test]
fn concurrent_sweeps_of_the_same_containers_all_succeed() {
    let label = &unique("sweeps.two");
    let engine = Engine::from_env();
    let mut ids = make(&engine, label, 25);
    let started = concurrently(&Vec::from_iter(25..50), 6, |n| {
        let name = format!("{label}-{n}");
        engine.docker().run(&ContainerSpec::stubborn(&name).label(label, ""))
    });
    ids.extend(started.unwrap());
    let wire = Wire::start(&engine, 2).unwrap();
    // Both have listed all of them before the first one is removed.
    wire.add(Rule::new("", Fault::Delay { by: Duration::from_secs(1) }).method("DELETE"));
    let (one, other) = (Home::on(&wire.engine()), Home::on(&wire.engine()));
    let sweep = ["sweep", "--label", label, "--apply", "--json"];
    // The first two share a ledger, and the third has its own.
    let sweeps = [one.creel.spawn(sweep), one.creel.spawn(sweep), other.creel.spawn(sweep)];
    for swept in sweeps.map(|sweep| sweep.wait()) {
        let report = assert_truthful(&swept, &engine, label);
        assert_eq!((&report["planned"], &report["gone"]), (&50.into(), &50.into()), "{swept}");
        swept.expect_code(0);
    }
    assert!(left(&engine, label).is_empty());
}

#[test]
fn a_container_is_killed_directly_if_safe_and_otherwise_by_the_engine() {
    let label = &unique("sweeps.kill");
    let engine = Engine::from_env();
    let docker = engine.docker();
    let stubborn =
        |name: &str| ContainerSpec::stubborn(&format!("{label}-{name}")).label(label, "");
    let cli = |arguments: &[&str]| {
        let output = docker.cli(arguments).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = docker.run(&stubborn("plain")).unwrap();
    let returning = docker.run(&stubborn("returning")).unwrap();
    cli(&["update", "--restart", "always", &returning]);
    let frozen = docker.run(&stubborn("frozen")).unwrap();
    cli(&["pause", &frozen]);
    let began_at = cli(&["info", "--format", "{{.SystemTime}}"]);
    Home::on(&engine).creel.run(["sweep", "--label", label, "--apply"]).expect_code(0);
    assert!(left(&engine, label).is_empty());
    let ended_at = cli(&["info", "--format", "{{.SystemTime}}"]);
    let by_label = format!("label={label}");
    let during = ["--since", began_at.trim(), "--until", ended_at.trim(), "--filter", &by_label];
    let events = cli(&[&["events", "--format", "{{.Action}} {{.ID}}"], &during[..]].concat());
    let happened =
        |action: &str, id: &str| events.lines().any(|line| line == format!("{action} {id}"));
    assert!(happened("die", &plain) && !happened("kill", &plain), "{events}");
    assert!(happened("kill", &returning), "{events}");
    // A frozen process does not die, and the engine may not answer the removal: it is thawed first.
    assert!(happened("unpause", &frozen) && happened("die", &frozen), "{events}");
}

#[test]
fn a_daemon_killed_during_a_sweep_is_reported_correctly_and_swept_again() {
    let label = &unique("sweeps.killed");
    let mut private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let engine = private.engine();
    let made = concurrently(&Vec::from_iter(0..40), 6, |n| {
        let spec = ContainerSpec::stubborn(&format!("{label}-{n}"));
        engine.docker().run(&spec.label(label, ""))
    });
    made.unwrap();
    let home = Home::on(&engine);
    let retry = ["--retry-delay", "200ms", "--retries", "8", "--retry-deadline", "60s"];
    let sweep = [&["sweep", "--label", label, "--apply", "--json"], &retry[..]].concat();
    let running = home.creel.clone().deadline(Duration::from_secs(120)).spawn(&sweep);
    let halfway = eventually(Duration::from_secs(30), || left(&engine, label).len() < 30);
    assert!(halfway, "the sweep did not begin: {}", running.stderr());
    private.kill_hard().unwrap();
    let there = eventually(Duration::from_secs(5), || !engine.answers());
    assert!(there, "the daemon was killed");
    private.restart().unwrap();
    let swept = running.wait();
    let report = assert_truthful(&swept, &engine, label);
    assert_eq!(report["planned"], 40, "{swept}");
    let all_gone = report["gone"] == 40;
    assert_eq!(swept.code() == Some(0), all_gone, "{swept}");
    assert!(all_gone || [Some(3), Some(7)].contains(&swept.code()), "{swept}");
    println!(
        "report: daemon killed in a sweep of 40: {} gone, exit {:?}",
        report["gone"],
        swept.code()
    );
    home.creel.run(&sweep).expect_code(0);
    assert!(left(&engine, label).is_empty());
    private.stop().unwrap();
}

#[test]
fn an_interrupted_sweep_finishes_releases_in_progress_and_starts_no_others() {
    let label = &unique("sweeps.interrupted");
    let engine = Engine::from_env();
    make(&engine, label, 20);
    for signal in ["INT", "TERM"] {
        let before = left(&engine, label);
        let wire = Wire::start(&engine, 3).unwrap();
        let delay = Fault::Delay { by: Duration::from_secs(1) };
        let slow = wire.add(Rule::new("", delay).method("DELETE"));
        let home = Home::on(&wire.engine());
        let sweep = ["sweep", "--label", label, "--apply", "--json", "--concurrency", "2"];
        let running = home.creel.spawn(sweep);
        assert!(eventually(Duration::from_secs(20), || slow.fired() >= 3), "it did not begin");
        running.signal(signal);
        let swept = running.wait().expect_code(130);
        let report = assert_truthful(&swept, &engine, label);
        let after = left(&engine, label);
        let gone: BTreeSet<String> = before.difference(&after).cloned().collect();
        assert_eq!(ids_with(&report, "gone"), gone, "{swept}");
        assert_eq!(ids_with(&report, "spared"), after, "{swept}");
        // Releases in progress at the signal were finished, and none was started after it.
        assert!((3..=4).contains(&gone.len()), "{} went\n{swept}", gone.len());
    }
    for id in left(&engine, label) {
        engine.docker().remove_container(&id).unwrap();
    }
}
