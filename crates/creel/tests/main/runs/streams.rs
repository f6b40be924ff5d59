//! Streams that break: the log of a run is the same however often the way to its sandbox is cut.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use creel_core::provider::ProviderName;
use creel_testkit::engine::Engine;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::Value;

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

/// Checks that a run told everything once, and that its stream was broken.
#[track_caller]
fn assert_undisturbed(cell: &Cell<'_>, undisturbed: &[String]) {
    let shown = cell.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}\n{}", cell.said());
    assert_eq!(story(cell), undisturbed);
    cell.assert_events_whole();
    let broken = |event: &Value| event["connection"] == "reconnecting";
    let breaks = cell.events().iter().filter(|event| broken(event)).count();
    assert!(breaks >= MOST_LIKELY / 2, "the stream was noticed to break only {breaks} times");
    cell.stage.assert_nothing_left();
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

#[test]
fn a_container_whose_streams_are_cut_every_fifth_of_a_second_tells_the_same() {
    let mut stage = Stage::set(ProviderName::Docker);
    let wanted = undisturbed(&stage);
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    stage.home = stage.home.moved_to(&wire.engine());
    let cell = stage.start("10m", &talkative());
    cell.await_words("first 0");
    let cuts = wire.add(Rule::new("/exec/[0-9a-f]+/start", Fault::CutMidway { after: LIFE }));
    assert_undisturbed(&cell, &wanted);
    assert!(cuts.fired() >= MOST_LIKELY as u64, "cut only {} times", cuts.fired());
    cell.conclude(0);
}

/// Kills whatever reads a spool below a directory, again and again, until it is told to stop.
struct Cutter {
    stop: Arc<AtomicBool>,
    cuts: Arc<AtomicUsize>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Cutter {
    fn start(directory: PathBuf) -> Self {
        let (stop, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&cuts));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                for pid in tails_below(&directory) {
                    crate::support::kill(pid);
                    count.fetch_add(1, Ordering::SeqCst);
                }
                thread::sleep(LIFE);
            }
        });
        Self { stop, cuts, thread: Some(thread) }
    }

    /// Stops, and returns how often something was killed.
    fn stop(mut self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        self.cuts.load(Ordering::SeqCst)
    }
}

#[test]
fn a_process_tree_whose_streams_are_cut_every_fifth_of_a_second_tells_the_same() {
    let stage = Stage::set(ProviderName::Process);
    let wanted = undisturbed(&stage);
    let cell = stage.start("10m", &talkative());
    cell.await_words("first 0");
    let cutter = Cutter::start(stage.home.creel.state());
    assert_undisturbed(&cell, &wanted);
    let cuts = cutter.stop();
    assert!(cuts >= MOST_LIKELY, "cut only {cuts} times");
    cell.conclude(0);
}
