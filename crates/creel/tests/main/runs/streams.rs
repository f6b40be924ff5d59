//! Streams that break: the log of a run is the same however often its connection is cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use creel_testkit::engine::Engine;
use creel_testkit::wire::Wire;
use serde_json::{Value, json};

use crate::support::kill;

use super::run_fixture::{RunFixture, TestRun, agent_twice, tails_below};

/// The lifetime of a stream.
const LIFE: Duration = Duration::from_millis(200);
/// The number of lines that the agent writes in a turn.
const LINES: usize = 40;
/// The minimum number of cuts.
const MOST_LIKELY: usize = 8;

/// Returns a workflow whose agent writes lines to both streams for some seconds, in two turns.
fn verbose_workflow() -> String {
    let script = format!(
        "read -r prompt; i=0; while [ $i -lt {LINES} ]; do echo \"$prompt $i\"; \
         echo \"error $i\" >&2; i=$((i+1)); sleep 0.1; done"
    );
    // A line break ends the prompt, because the script reads one line.
    agent_twice(&script, "second\\n").replace("prompt = \"go\"", "prompt = \"first\\n\"")
}

/// Returns the events that the sandbox reported, independent of how they were split.
fn reported_events(test_run: &TestRun<'_>) -> Vec<String> {
    let mut reported_events: Vec<String> = Vec::new();
    let mut texts: [String; 2] = Default::default();
    for event in test_run.events() {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        match text("event").as_str() {
            "text" => texts[usize::from(text("stream") == "error")].push_str(&text("text")),
            "turn_started" => reported_events.push(format!("turn {} started", event["turn"])),
            "turn_ended" => {
                reported_events.extend(texts.iter_mut().map(std::mem::take));
                reported_events.push(format!("turn {} ended: {}", event["turn"], event["how"]));
            }
            "bridge_started" | "runtime_ready" | "bootstrap_ok" => {
                reported_events.push(text("event"))
            }
            _ => {}
        }
    }
    reported_events
}

/// Asserts that a run reported every event once.
#[track_caller]
fn assert_undisturbed(test_run: &TestRun<'_>, undisturbed: &[String]) {
    let shown = test_run.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}\n{}", test_run.stderr());
    assert_eq!(reported_events(test_run), undisturbed);
    test_run.assert_events_whole();
    test_run.fixture.assert_nothing_left();
}

/// Asserts that the engine noticed the broken stream.
#[track_caller]
fn assert_noticed(test_run: &TestRun<'_>) {
    let broken = |event: &Value| event["connection"] == "reconnecting";
    let breaks = test_run.events().iter().filter(|event| broken(event)).count();
    assert!(breaks >= MOST_LIKELY / 2, "the stream was noticed to break only {breaks} times");
}

/// Returns the events of an undisturbed run.
fn undisturbed(fixture: &RunFixture) -> Vec<String> {
    let test_run = fixture.start("10m", &verbose_workflow());
    let shown = test_run.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}");
    let reported_events = reported_events(&test_run);
    let expected = |line: &str| reported_events.iter().any(|event| event.contains(line));
    assert!(
        expected("first 39\n") && expected("second 39\n") && expected("error 39\n"),
        "{reported_events:?}"
    );
    test_run.conclude(0);
    reported_events
}

/// Cuts connections repeatedly until it is stopped.
struct Cutter {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Cutter {
    /// Starts to cut. The closure returns the number of connections it cut.
    fn start(cut: impl Fn() -> usize + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut cuts = 0;
            while !stopped.load(Ordering::SeqCst) {
                cuts += cut();
                thread::sleep(LIFE);
            }
            cuts
        });
        Self { stop, thread }
    }

    /// Stops, and returns the number of cuts.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Disturbs a run, and asserts that it reports the same events as an undisturbed one.
fn disturb(fixture: &RunFixture, wanted: &[String], cut: impl Fn() -> usize + Send + 'static) {
    let test_run = fixture.start("10m", &verbose_workflow());
    test_run.await_output("first 0");
    let cutter = Cutter::start(cut);
    assert_undisturbed(&test_run, wanted);
    assert_noticed(&test_run);
    let cuts = cutter.stop();
    assert!(cuts >= MOST_LIKELY, "cut only {cuts} times");
    test_run.conclude(0);
}

#[test]
fn a_container_whose_streams_are_cut_every_fifth_of_a_second_reports_the_same_events() {
    let mut fixture = RunFixture::set(creel_docker::NAME);
    let wanted = undisturbed(&fixture);
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    fixture.home = fixture.home.moved_to(&wire.engine());
    disturb(&fixture, &wanted, move || wire.cut("/exec/[0-9a-f]+/start"));
}

#[test]
fn a_process_tree_whose_streams_are_cut_every_fifth_of_a_second_reports_the_same_events() {
    let fixture = RunFixture::set(creel_process::NAME);
    let wanted = undisturbed(&fixture);
    let state = fixture.home.creel.state();
    disturb(&fixture, &wanted, move || {
        let tails = tails_below(&state);
        tails.iter().copied().for_each(kill);
        tails.len()
    });
}

#[test]
fn a_cloud_sandbox_whose_streams_are_cut_every_fifth_of_a_second_reports_the_same_events() {
    let fixture = RunFixture::set(creel_daytona::NAME);
    let wanted = undisturbed(&fixture);
    let cloud = fixture.cloud.as_ref().unwrap();
    cloud.arm(&json!({"at": "follow", "fault": "cut_stream", "seconds": LIFE.as_secs_f64()}));
    let test_run = fixture.start("10m", &verbose_workflow());
    assert_undisturbed(&test_run, &wanted);
    let cuts = cloud.disarm();
    assert!(cuts >= MOST_LIKELY as u64, "cut only {cuts} times");
    test_run.conclude(0);
}
