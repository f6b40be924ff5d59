//! Creates that land after their client is gone.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use creel_testkit::docker::concurrently;
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::inventory::Inventory;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use crate::crash::HeldKind;
use crate::support::{Home, PATIENCE, text_of};

/// The number of interrupted creates.
const CREATES: u32 = 80;
/// The number of concurrent creates.
const AT_ONCE: usize = 8;
/// How long nothing may appear before the engine counts as quiet.
const QUIET: Duration = Duration::from_secs(3);

/// Counts the objects that an engine creates, by its own events.
struct CreateCounter {
    listener: Child,
    events: std::path::PathBuf,
}

impl CreateCounter {
    fn start(engine: &Engine, home: &Home) -> Self {
        let events = home.path("events");
        // With history, so it does not matter when the subscription is established.
        let arguments = ["events", "--since", "0", "--filter", "event=create", "--format"];
        let listener = Command::new("docker")
            .args(arguments)
            .arg("{{.Type}} {{.Actor.ID}}")
            .env("DOCKER_HOST", engine.host())
            .stdin(Stdio::null())
            .stdout(File::create(&events).unwrap())
            .spawn();
        Self { listener: listener.unwrap(), events }
    }

    fn count(mut self) -> usize {
        self.listener.kill().unwrap();
        self.listener.wait().unwrap();
        text_of(&self.events).lines().count()
    }
}

/// Acquires one resource through a wire that cuts the create, and kills the supervisor as soon as
/// the engine has it. The watchdog still reaches the engine through the wire.
fn cut_and_kill(home: &Home, engine: &Engine, number: u32) -> Wire {
    // From half a millisecond to twelve.
    let after = Duration::from_micros(500 + u64::from(number) * 11_500 / u64::from(CREATES - 1));
    let wire = Wire::start(engine, u64::from(number)).unwrap();
    let cut = wire.add(Rule::new("/create", Fault::CutAfterSend { after }).method("POST"));
    let held_kind = [HeldKind::Container, HeldKind::Network, HeldKind::Volume][number as usize % 3];
    // Every other one has a watchdog; the rest is left to reconcile.
    let alone: &[&str] = if number.is_multiple_of(2) { &["--no-watchdog"] } else { &[] };
    let creel = home.creel.clone().env("DOCKER_HOST", wire.host());
    let mut running = creel.spawn([&["dev", "hold"], alone, held_kind.flags()].concat());
    let started_at = Instant::now();
    // In a busy loop, because the kill must happen in the first milliseconds of the create.
    while cut.fired() == 0 && !running.has_ended() && started_at.elapsed() < PATIENCE {
        std::hint::spin_loop();
    }
    assert_eq!(cut.fired(), 1, "the create was not cut: {}", running.stderr());
    let instant = Instant::now();
    while instant.elapsed() < after {
        std::hint::spin_loop();
    }
    running.kill();
    wire
}

#[test]
fn of_eighty_creates_whose_client_is_cut_and_killed_nothing_remains() {
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let engine = private.engine();
    let home = Home::on(&engine);
    home.configure("[ledger]\nintent_window = \"15s\"\n");
    let baseline = Inventory::snapshot(&engine).unwrap();
    let census = CreateCounter::start(&engine, &home);
    let numbers = Vec::from_iter(0..CREATES);
    let wires = concurrently(&numbers, AT_ONCE, |number| Ok(cut_and_kill(&home, &engine, *number)));
    let wires = wires.unwrap();

    let converged = eventually(Duration::from_secs(60), || {
        home.reconcile_or_wait();
        home.open_records().is_empty()
    });
    assert!(converged, "{:#?}", home.open_records());
    home.await_quiet();
    drop(wires);
    let left = || Inventory::snapshot(&engine).unwrap().minus(&baseline);
    let ghost = eventually(QUIET, || !left().is_empty());
    assert!(!ghost, "a ghost appeared: {:#?}", left());
    let made = census.count();
    let found = home.records().into_iter().filter(|record| {
        let events = home.events(record["resource"].as_str().unwrap());
        events.iter().any(|event| event["event"] == "found" || event["event"] == "created")
    });
    println!(
        "report: {CREATES} creates cut after 0.5 to 12 ms: the engine made {made}, {} were found \
         and released, 0 left",
        found.count()
    );
    assert!(made >= 40, "the engine made only {made}: too few to prove anything");
    private.stop().unwrap();
}
