//! Creates that land after their client is gone.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use creel_testkit::docker::concurrently;
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use creel_testkit::world::World;

use crate::crash::Taken;
use crate::support::{Home, PATIENCE, text_of};

/// How many creates are cut.
const CREATES: u32 = 80;
/// How many are under way at once.
const AT_ONCE: usize = 8;
/// How long nothing may appear any more before it counts as nothing.
const QUIET: Duration = Duration::from_secs(3);

/// Counts what an engine makes, as its own events tell.
struct Census {
    listener: Child,
    heard: std::path::PathBuf,
}

impl Census {
    fn start(engine: &Engine, home: &Home) -> Self {
        let heard = home.path("events");
        // History included: it does not matter when the listener is connected.
        let arguments = ["events", "--since", "0", "--filter", "event=create", "--format"];
        let listener = Command::new("docker")
            .args(arguments)
            .arg("{{.Type}} {{.Actor.ID}}")
            .env("DOCKER_HOST", engine.host())
            .stdin(Stdio::null())
            .stdout(File::create(&heard).unwrap())
            .spawn();
        Self { listener: listener.unwrap(), heard }
    }

    fn count(mut self) -> usize {
        self.listener.kill().unwrap();
        self.listener.wait().unwrap();
        text_of(&self.heard).lines().count()
    }
}

/// Takes one thing through a wire that cuts the create, and kills the supervisor as soon as the
/// engine has it. The wire is still the watchdog's way to the engine.
fn cut_and_kill(home: &Home, engine: &Engine, number: u32) -> Wire {
    // From half a millisecond to twelve.
    let after = Duration::from_micros(500 + u64::from(number) * 11_500 / u64::from(CREATES - 1));
    let wire = Wire::start(engine, u64::from(number)).unwrap();
    let cut = wire.add(Rule::new("/create", Fault::CutAfterSend { after }).method("POST"));
    let taken = [Taken::Container, Taken::Network, Taken::Volume][number as usize % 3];
    // Every other one has a watchdog; the rest is left to reconcile.
    let alone: &[&str] = if number.is_multiple_of(2) { &["--no-watchdog"] } else { &[] };
    let creel = home.creel.clone().env("DOCKER_HOST", wire.host());
    let mut running = creel.spawn([&["dev", "hold"], alone, taken.flags()].concat());
    let started_at = Instant::now();
    // Not by polling at leisure: the kill must fall into the first milliseconds of the create.
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
fn of_eighty_creates_whose_client_is_cut_and_killed_no_ghost_remains() {
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let engine = private.engine();
    let home = Home::on(&engine);
    home.configure("[ledger]\nintent_window = \"15s\"\n");
    let baseline = World::snapshot(&engine).unwrap();
    let census = Census::start(&engine, &home);
    let numbers = Vec::from_iter(0..CREATES);
    let wires = concurrently(&numbers, AT_ONCE, |number| Ok(cut_and_kill(&home, &engine, *number)));
    let wires = wires.unwrap();

    let settled = eventually(Duration::from_secs(60), || {
        home.reconcile_or_wait();
        home.open_records().is_empty()
    });
    assert!(settled, "{:#?}", home.open_records());
    home.await_quiet();
    drop(wires);
    let left = || World::snapshot(&engine).unwrap().minus(&baseline);
    let ghost = eventually(QUIET, || !left().is_empty());
    assert!(!ghost, "a ghost appeared: {:#?}", left());
    let made = census.count();
    let found = home.records().into_iter().filter(|record| {
        let events = home.events(record["resource"].as_str().unwrap());
        events.iter().any(|event| event["event"] == "found" || event["event"] == "created")
    });
    println!(
        "report: {CREATES} creates cut after 0.5 to 12 ms: the engine made {made}, {} were found \
         and given back, 0 left",
        found.count()
    );
    assert!(made >= 40, "the engine made only {made}: too few to prove anything");
    private.stop().unwrap();
}
