//! The kill suite: whatever is signalled, and whenever, nothing of the command is left.
//!
//! Each cell runs a command that makes one of everything again and again, sends
//! signals to the command, its guard, or the guard and its watchdog, and lets
//! whoever is left recover. All cells share one engine and one ledger with a
//! second guard, which keeps what it has until its own command ends, and with
//! decoys that strangers make meanwhile.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use creel_testkit::creel::Running;
use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::docker::concurrently;
use creel_testkit::wait::{eventually, eventually_some};
use creel_testkit::world::{Inventory, World};
use serde_json::Value;

use super::scene::Scene;
use crate::support::{LEDGER_LABEL, PATIENCE, kill, text_of};

/// The settings under which an unanswered create is searched for no longer than a test can wait.
const SHORT_WINDOW: &str = "[ledger]\nintent_window = \"2s\"\n";
/// How much later it is looked once more whether nothing is left.
const LATER: Duration = Duration::from_secs(15);
/// The latest instant of a blow; the command has made two of everything by then.
const LATEST: Duration = Duration::from_millis(4500);
/// How many things of the cells have their labels copied.
const COPIES: usize = 3;
/// How many cells run at once.
const CONCURRENCY: usize = 3;

/// What is signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Command,
    Guard,
    GuardAndWatchdog,
}

/// The signals it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    Kill,
    Terminate,
    HangUp,
    Interrupt,
    InterruptTwice,
}

impl Blow {
    const ALL: [Self; 5] =
        [Self::Kill, Self::Terminate, Self::HangUp, Self::Interrupt, Self::InterruptTwice];

    fn signals(self) -> &'static [&'static str] {
        match self {
            Self::Kill => &["KILL"],
            Self::Terminate => &["TERM"],
            Self::HangUp => &["HUP"],
            Self::Interrupt => &["INT"],
            Self::InterruptTwice => &["INT", "INT"],
        }
    }
}

/// One cell: who is hit how, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    target: Target,
    blow: Blow,
    instant: Duration,
    /// What its names begin with.
    number: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, blow, instant, .. } = self;
        write!(formatter, "{blow:?} to {target:?} after {instant:?}")
    }
}

/// Returns every cell so many times, each at an instant that its number decides.
pub(crate) fn cells(times: usize) -> Vec<Cell> {
    let targets = [Target::Command, Target::Guard, Target::GuardAndWatchdog];
    let pairs = targets.iter().flat_map(|&target| Blow::ALL.map(|blow| (target, blow)));
    let all = pairs.flat_map(|pair| std::iter::repeat_n(pair, times)).enumerate();
    all.map(|(number, (target, blow))| {
        let mut random = fastrand::Rng::with_seed(number as u64);
        let latest = u64::try_from(LATEST.as_micros()).unwrap();
        let instant = Duration::from_micros(random.u64(0..latest));
        Cell { target, blow, instant, number }
    })
    .collect()
}

impl Cell {
    /// What nobody else runs: it is looked for without any mark of ours.
    fn sleep(&self) -> String {
        format!("{}.{}", 100_000 + self.number, std::process::id())
    }

    /// Makes one of everything again and again, then waits.
    fn script(&self, scene: &Scene) -> String {
        let (cell, sleep, pid) = (self.number, self.sleep(), self.pid_file());
        let pid = scene.path(&pid).display().to_string();
        format!(
            "echo $$ >{pid}.new; mv {pid}.new {pid}
             setsid sleep {sleep} & env -i /usr/bin/setsid /usr/bin/sleep {sleep} &
             for turn in 1 2 3; do
                 name=cell{cell}-$turn; echo text >$TMPDIR/$name
                 docker network create $name; docker volume create $name
                 docker run -d --init --name $name --network $name -v $name:/a -v $name-implicit:/b \
                     -v /c --mount type=volume,target=/d creel-test sleep 100000
                 printf 'FROM creel-test\\nRUN echo {cell} $turn >/1\\nRUN sleep 0.1\\nRUN sleep 0.1\\n' \
                     | DOCKER_BUILDKIT=0 docker build -t $name -t $name:more -
                 docker run --rm -v /e $name true; docker tag $name $name:tagged
                 docker commit $name $name:committed; docker save $name:committed >$TMPDIR/$name.tar
                 docker rmi $name:committed; docker load <$TMPDIR/$name.tar
             done >/dev/null 2>&1
             sleep 100000"
        )
    }

    fn pid_file(&self) -> String {
        format!("pid-{}", self.number)
    }

    /// Runs the command, strikes, and waits for the recovery.
    fn run(&self, scene: &Scene) {
        let mut guard = scene.start(&[], &self.script(scene));
        if self.target == Target::Command {
            scene.await_word(&self.pid_file());
        }
        thread::sleep(self.instant);
        let owner = guard.pid();
        self.strike(scene, &guard);
        if self.blow == Blow::Interrupt || self.target == Target::Command {
            // Whoever is only asked may take its time, and the command has none left.
            end_command(scene, self);
        }
        let ended = eventually(PATIENCE, || guard.has_ended());
        assert!(ended, "{self}: the guard goes on\n{}", guard.stderr());
        let recovered = eventually(PATIENCE, || {
            if self.target == Target::GuardAndWatchdog {
                scene.home.creel.run(["reconcile"]);
            }
            left_open(scene, owner).iter().all(is_doubtful)
        });
        let mut open = left_open(scene, owner);
        open.retain(|record| !is_doubtful(record));
        assert!(recovered, "{self}: still open: {open:#?}\n{}", guard.stderr());
        // Its heir may have taken the records over and not have ended the processes yet.
        let ended = eventually(PATIENCE, || self.processes().is_empty());
        assert!(ended, "{self}: still running: {:?}", self.processes());
    }

    fn strike(&self, scene: &Scene, guard: &Running) {
        let guard = guard.pid();
        let victims = match self.target {
            Target::Command => vec![text_of(&scene.path(&self.pid_file())).trim().to_owned()],
            Target::Guard => vec![guard.to_string()],
            Target::GuardAndWatchdog => {
                watchdog_of(guard).into_iter().chain([guard]).map(|pid| pid.to_string()).collect()
            }
        };
        for (count, signal) in self.blow.signals().iter().enumerate() {
            // A terminal's user presses again, not at the same time.
            thread::sleep(Duration::from_millis(200) * u32::try_from(count).unwrap());
            // Some may have ended after the first one.
            let _ = Command::new("kill").args(["-s", signal]).args(&victims).output();
        }
    }

    /// Returns the processes that the command started and took away from everybody.
    fn processes(&self) -> Vec<i32> {
        let is_ours = |line: &[u8]| line.ends_with(format!("\0{}\0", self.sleep()).as_bytes());
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| is_ours(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()))
            .collect()
    }
}

/// Kills the shell of a cell, if its signal did not: one that waits for a client ends later.
fn end_command(scene: &Scene, cell: &Cell) {
    let pid = text_of(&scene.path(&cell.pid_file()));
    let Ok(pid) = pid.trim().parse::<i32>() else { return };
    let script = format!("pid-{}", cell.number);
    let is_ours = || {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&script)
    };
    if !eventually(Duration::from_secs(3), || !is_ours()) {
        kill(pid);
    }
}

/// Returns the watchdog that a guard has started, if it has come that far.
pub(crate) fn watchdog_of(guard: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).ok()?;
    let pids = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
    let is_watchdog = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"watchdog")
    };
    pids.into_iter().find(is_watchdog)
}

/// Returns whether a record is of a name of an image that is kept because no answer told of it
/// before the guard died: somebody else may have made it.
fn is_doubtful(record: &Value) -> bool {
    let reason = record["reason"].as_str().unwrap_or_default();
    record["kind"] == "image" && reason.starts_with("kept, nothing proves")
}

/// Removes the names of images that are kept and reported, as a user does who knows them.
fn remove_doubtful(scene: &Scene) {
    let there = scene.outside("docker images --format '{{.Repository}}:{{.Tag}}'");
    let is_untold = |record: &Value| {
        let events = scene.home.events(record["resource"].as_str().unwrap());
        let evidence = events.last().and_then(|event| event["evidence"].as_str());
        evidence.is_some_and(|evidence| evidence.starts_with("kept, nothing proves"))
    };
    for record in scene.home.records() {
        let name = record["name"].as_str().unwrap();
        let is_there = record["kind"] == "image" && there.lines().any(|line| line == name);
        if is_there && (is_doubtful(&record) || is_untold(&record)) {
            scene.direct(&format!("docker rmi '{name}'"));
        }
    }
    scene.home.creel.run(["reconcile"]);
}

/// Returns the open records of one guard.
fn left_open(scene: &Scene, guard: u32) -> Vec<Value> {
    let is_its = |record: &Value| record["owner"]["pid"] == guard;
    scene.home.open_records().into_iter().filter(is_its).collect()
}

/// A guard that runs all the time, and what it has.
struct Second {
    guard: Running,
    has: Inventory,
}

impl Second {
    /// Starts it, and waits until it has one of everything.
    fn start(scene: &mut Scene) -> Self {
        let script = format!(
            "set -e; docker network create second; docker volume create second
             docker run -d --init --name second --network second -v second:/a -v /b creel-test sleep 100000
             docker tag creel-test second:1; docker commit second second:2
             echo ready >{}; until [ -e {} ]; do sleep 0.1; done",
            scene.path("second-ready").display(),
            scene.path("second-end").display(),
        );
        // It must outlive the whole suite.
        scene.home.creel = scene.home.creel.clone().deadline(Duration::from_secs(7200));
        let guard = scene.start(&[], &script);
        scene.await_word("second-ready");
        let has = World::snapshot(&scene.engine()).unwrap();
        Self { guard, has }
    }

    /// Lets its command end, and checks that it gives everything back.
    fn end(self, scene: &Scene) {
        fs::write(scene.path("second-end"), "end").unwrap();
        self.guard.wait().expect_code(0);
    }
}

/// Returns what is there besides what was, what the second guard has, and the decoys.
fn left(scene: &Scene, has: &Inventory, decoys: &Decoys) -> Vec<String> {
    let now = World::snapshot(&scene.engine()).unwrap();
    let known = decoys.ids();
    let more = now.minus(has).filter(|one| !known.contains(&one.id.as_str()));
    let lost = has.minus(&now);
    let more = more.objects().map(|one| format!("left {one:?}"));
    more.chain(lost.objects().map(|one| format!("lost {one:?}"))).collect()
}

/// Plants objects with the very labels of what the cells make, under other names.
fn copy_labels(scene: &Scene, has: &Inventory, decoys: &mut Decoys) {
    for number in 0..COPIES {
        let ledger = scene.home.ledger_id();
        let made = eventually_some(PATIENCE, || {
            let known = decoys.ids().iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
            let now = World::snapshot(&scene.engine()).ok()?.with_label(LEDGER_LABEL, &ledger);
            let of_a_cell = now.minus(has).filter(|one| !known.contains(&one.id));
            of_a_cell.objects().nth(number).map(|one| one.labels.clone())
        });
        // All cells may be over by now.
        let Some(labels) = made else { return };
        decoys.plant_copies(&format!("copied-{number}"), &labels).unwrap();
    }
}

/// Runs cells, and checks the world when all have recovered, and later once more.
pub(crate) fn run_all(cells: &[Cell]) {
    let mut scene = Scene::set_up();
    scene.home.configure(SHORT_WINDOW);
    let second = Second::start(&mut scene);
    let held = left_open(&scene, second.guard.pid()).len();
    let original = Lookalike {
        name: "cell1-1".to_owned(),
        label_key: LEDGER_LABEL.to_owned(),
        label_value: scene.home.ledger_id(),
    };
    let decoys = thread::scope(|scope| {
        // By strangers, while the cells run.
        let planting = scope.spawn(|| {
            let mut decoys = Decoys::plant(&scene.engine(), &original).unwrap();
            copy_labels(&scene, &second.has, &mut decoys);
            decoys
        });
        let run = |cell: &Cell| {
            cell.run(&scene);
            Ok(())
        };
        concurrently(cells, CONCURRENCY, run).unwrap();
        planting.join().unwrap()
    });
    remove_doubtful(&scene);
    for look in ["after the recovery", "a while later"] {
        let nothing = Vec::<String>::new();
        assert_eq!(left(&scene, &second.has, &decoys), nothing, "{look}");
        decoys.assert_untouched();
        assert_eq!(left_open(&scene, second.guard.pid()).len(), held, "{look}");
        assert_eq!(scene.home.open_records().len(), held, "{look}");
        if look == "after the recovery" {
            thread::sleep(LATER);
        }
    }
    second.end(&scene);
    drop(decoys);
    scene.assert_nothing_left();
}

#[test]
fn whatever_is_killed_nothing_is_left() {
    run_all(&cells(1));
}
