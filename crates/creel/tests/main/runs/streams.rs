//! Streams that break: the log of a run is the same however often the way to its sandbox is cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use creel_model::provider::ProviderName;
use creel_testkit::engine::Engine;
use creel_testkit::wire::Wire;
use serde_json::{Value, json};

use crate::support::kill;

use super::stage::{Cell, Stage, agent_twice, tails_below};

/// How long a stream lives.
const LIFE: Duration = Duration::from_millis(200);
/// How many lines the agent writes in a turn.
const LINES: usize = 40;
/// How often a stream must have been cut, at least.
const MOST_LIKELY: usize = 8;

/// A workflow whose agent writes lines to both streams for some seconds, in two turns.
fn talkative() -> String {
    let script = format!(
        "read -r prompt; i=0; while [ $i -lt {LINES} ]; do echo \"$prompt $i\"; \
         echo \"error $i\" >&2; i=$((i+1)); sleep 0.1; done"
    );
    // A line break ends the prompt: the script reads one line.
    agent_twice(&script, "second\\n").replace("prompt = \"go\"", "prompt = \"first\\n\"")
}

/// Returns the events that the sandbox told, without what depends on how they were cut in pieces.
fn story(cell: &Cell<'_>) -> Vec<String> {
    let mut story: Vec<String> = Vec::new();
    let mut texts: [String; 2] = Default::default();
    for event in cell.events() {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        match text("event").as_str() {
            "text" => texts[usize::from(text("stream") == "error")].push_str(&text("text")),
            "turn_started" => story.push(format!("turn {} started", event["turn"])),
            "turn_ended" => {
                story.extend(texts.iter_mut().map(std::mem::take));
                story.push(format!("turn {} ended: {}", event["turn"], event["how"]));
            }
            "bridge_started" | "runtime_ready" | "bootstrap_ok" => story.push(text("event")),
            _ => {}
        }
    }
    story
}

/// Checks that a run told everything once.
#[track_caller]
fn assert_undisturbed(cell: &Cell<'_>, undisturbed: &[String]) {
    let shown = cell.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}\n{}", cell.said());
    assert_eq!(story(cell), undisturbed);
    cell.assert_events_whole();
    cell.stage.assert_nothing_left();
}

/// Checks that the engine noticed its stream to break.
#[track_caller]
fn assert_noticed(cell: &Cell<'_>) {
    let broken = |event: &Value| event["connection"] == "reconnecting";
    let breaks = cell.events().iter().filter(|event| broken(event)).count();
    assert!(breaks >= MOST_LIKELY / 2, "the stream was noticed to break only {breaks} times");
}

/// Returns the story of a run that nobody disturbs.
fn undisturbed(stage: &Stage) -> Vec<String> {
    let cell = stage.start("10m", &talkative());
    let shown = cell.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}");
    let story = story(&cell);
    let expected = |line: &str| story.iter().any(|told| told.contains(line));
    assert!(
        expected("first 39\n") && expected("second 39\n") && expected("error 39\n"),
        "{story:?}"
    );
    cell.conclude(0);
    story
}

/// Cuts something again and again, until it is told to stop.
struct Cutter {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Cutter {
    /// Starts to cut; what is called says how much it did.
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

    /// Stops, and returns how much was cut.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Disturbs a run that nobody disturbed before, and checks that it tells the same.
fn disturb(stage: &Stage, wanted: &[String], cut: impl Fn() -> usize + Send + 'static) {
    let cell = stage.start("10m", &talkative());
    cell.await_words("first 0");
    let cutter = Cutter::start(cut);
    assert_undisturbed(&cell, wanted);
    assert_noticed(&cell);
    let cuts = cutter.stop();
    assert!(cuts >= MOST_LIKELY, "cut only {cuts} times");
    cell.conclude(0);
}

#[test]
fn a_container_whose_streams_are_cut_every_fifth_of_a_second_tells_the_same() {
    let mut stage = Stage::set(ProviderName::Docker);
    let wanted = undisturbed(&stage);
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    stage.home = stage.home.moved_to(&wire.engine());
    disturb(&stage, &wanted, move || wire.cut("/exec/[0-9a-f]+/start"));
}

#[test]
fn a_process_tree_whose_streams_are_cut_every_fifth_of_a_second_tells_the_same() {
    let stage = Stage::set(ProviderName::Process);
    let wanted = undisturbed(&stage);
    let state = stage.home.creel.state();
    disturb(&stage, &wanted, move || {
        let tails = tails_below(&state);
        tails.iter().copied().for_each(kill);
        tails.len()
    });
}

#[test]
fn a_cloud_sandbox_whose_streams_are_cut_every_fifth_of_a_second_tells_the_same() {
    let stage = Stage::set(ProviderName::Daytona);
    let wanted = undisturbed(&stage);
    let cloud = stage.cloud.as_ref().unwrap();
    cloud.arm(&json!({"at": "follow", "fault": "cut_stream", "seconds": LIFE.as_secs_f64()}));
    let cell = stage.start("10m", &talkative());
    assert_undisturbed(&cell, &wanted);
    let cuts = cloud.disarm();
    assert!(cuts >= MOST_LIKELY as u64, "cut only {cuts} times");
    cell.conclude(0);
}
