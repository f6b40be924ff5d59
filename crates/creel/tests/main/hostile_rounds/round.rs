//! One round: work, a kill, acts of others, recovery under stress, recovery in peace, a verdict.

use std::time::Duration;

use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::docker::{ContainerSpec, Docker, Labels};
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule};
use serde_json::{Value, json};

use super::arena::{Arena, Place, SWEPT};
use super::others::{Act, Others};
use super::verdict::Verdict;
use super::work::{Names, Victims, Work, wait};
use crate::cli::cloud::Cloud;

/// How late the kill may come: the work has made everything by then.
const LATEST_KILL: Duration = Duration::from_millis(4500);
/// How long a recovery in peace may take on a loaded machine.
const PEACE: Duration = Duration::from_secs(90);
/// By how many seconds a wall clock jumps.
const JUMPS: [i64; 4] = [86_400, -10_800, 1200, -86_400];
/// How many commands are typed while the machine is in trouble.
const STRESSED_COUNT: usize = 6;
/// How many records `rm` is tried on.
const REMOVED_COUNT: usize = 3;

/// What people type on a machine that is in trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stressed {
    Reconcile,
    Ls,
    Runs,
    /// A dry run over all stopped things.
    PlanStopped,
    /// Releases our own things whose owner is dead.
    SweepOrphans,
    /// Releases all our own things that no live owner holds.
    SweepOwned,
    /// Releases foreign things by their label.
    SweepLabel,
    /// Releases what is on record, by resource id.
    RemoveRecords,
    /// Cancels the last run, if there is one.
    Cancel,
}

impl Stressed {
    const ALL: [Self; 9] = [
        Self::Reconcile,
        Self::Ls,
        Self::Runs,
        Self::PlanStopped,
        Self::SweepOrphans,
        Self::SweepOwned,
        Self::SweepLabel,
        Self::RemoveRecords,
        Self::Cancel,
    ];

    /// Types it; returns what was printed.
    fn run(self, creel: &Creel) -> String {
        let words: &[&str] = match self {
            Self::Reconcile => &["reconcile"],
            Self::Ls => &["ls"],
            Self::Runs => &["runs", "--json"],
            Self::PlanStopped => &["sweep", "--preset", "stopped"],
            Self::SweepOrphans => &["sweep", "--apply"],
            Self::SweepOwned => &["sweep", "--apply", "--owned"],
            Self::SweepLabel => return sweep_by_label(creel).to_string(),
            Self::RemoveRecords => return remove_records(creel),
            Self::Cancel => &["cancel", "last"],
        };
        creel.run(words).to_string()
    }
}

fn sweep_by_label(creel: &Creel) -> Output {
    let label = format!("{}={}", SWEPT.0, SWEPT.1);
    // A label alone also selects what inherited it from an image.
    creel.run(["sweep", "--apply", "--label", &label, "--name", "selected-[0-9]*"])
}

fn remove_records(creel: &Creel) -> String {
    let listed = creel.run(["ledger", "--json"]);
    let records: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
    let records = records["records"].as_array().into_iter().flatten();
    let resources = records.filter_map(|record| record["resource"].as_str());
    let outputs =
        resources.take(REMOVED_COUNT).map(|resource| creel.run(["rm", resource]).to_string());
    outputs.collect::<Vec<_>>().join("\n")
}

/// Everything that chance decides before a round begins.
#[derive(Debug)]
pub(crate) struct Round {
    seed: u64,
    work: Work,
    victims: Option<Victims>,
    kill_at: Duration,
    acts: Vec<Act>,
    stressed: Vec<Stressed>,
    /// By how much the clock of the work is off, and by how much that of the recovery.
    clocks: (i64, i64),
    full_disk: bool,
    faulty_engine: bool,
    names: Names,
}

impl Round {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let work = Work::ALL[usize::try_from(seed).unwrap_or_default() % Work::ALL.len()];
        let victims = match random.u8(0..10) {
            0 => None,
            1..5 => Some(Victims::Driver),
            _ => Some(Victims::DriverAndWatchdog),
        };
        let latest = u64::try_from(LATEST_KILL.as_millis()).unwrap_or(u64::MAX);
        let kill_at = Duration::from_millis(random.u64(0..latest));
        let acts = Act::draw(work, &mut random);
        let mut stressed = Stressed::ALL.to_vec();
        random.shuffle(&mut stressed);
        stressed.truncate(STRESSED_COUNT);
        let mut jump = || if random.bool() { 0 } else { JUMPS[random.usize(0..JUMPS.len())] };
        let clocks = (jump(), jump());
        let (full_disk, faulty_engine) = (random.bool(), random.bool());
        let names = Names::of(seed, &mut random);
        Self {
            seed,
            work,
            victims,
            kill_at,
            acts,
            stressed,
            clocks,
            full_disk,
            faulty_engine,
            names,
        }
    }

    /// Plays the round and says what came of it.
    pub(crate) fn play(&self, arena: &Arena) -> Tally {
        let place = Place::make(arena, self.seed, self.work.is_remote());
        let mut tally = Tally { rounds: 1, ..Tally::default() };
        let faults = self.break_engine(&place);
        self.break_service(&place);
        plant_swept(&arena.docker(), self.seed);
        let mut running = self.work.start(&place, &place.creel_at(self.clocks.0), &self.names);
        self.strike(&mut running, &mut tally);
        let mut others = Others { arena, place: &place, names: &self.names, theirs: Vec::new() };
        if self.full_disk && self.work != Work::GreedyRun {
            place.fill_disk();
            tally.full_disks += 1;
        }
        for act in &self.acts {
            // Directories are replaced only where no watchdog may be walking them: the window
            // between its comparison and its last call is documented.
            let raced =
                *act == Act::ReplaceDirectories && self.victims != Some(Victims::DriverAndWatchdog);
            if !raced && others.act(*act) {
                tally.replacements += 1;
            }
        }
        let mut said = self.recover_under_stress(&place, &mut tally);
        place.wire.heal();
        tally.faults += place.cloud.as_ref().map_or(0, Cloud::disarm);
        place.free_disk();
        said.push_str(&self.recover_in_peace(&place, running));
        // Whatever came of it under stress, in peace a sweep takes what it selects.
        let swept = sweep_by_label(&place.home.creel);
        said.push_str(&format!("\n{swept}"));
        tally.faults += faults.iter().map(|rule| rule.fired()).sum::<u64>();
        let verdict = Verdict::reach(arena, &place, &others, &self.names, &said);
        verdict.remove_doubtful(&arena.docker());
        tally.judge(verdict, || format!("{self:?}\n{said}"));
        others.theirs.iter().for_each(|one| one.remove(&arena.docker()));
        tally
    }

    fn break_engine(&self, place: &Place) -> Vec<std::sync::Arc<Rule>> {
        if !self.faulty_engine {
            return Vec::new();
        }
        let unavailable = Fault::Status { code: 503, message: "busy".to_owned() };
        let cut = Fault::CutAfterSend { after: Duration::from_millis(5) };
        [(Fault::LoseResponse, 0.05), (Fault::Reset, 0.05), (unavailable, 0.05), (cut, 0.05)]
            .into_iter()
            .map(|(fault, chance)| place.wire.add(Rule::new(".*", fault).probability(chance)))
            .collect()
    }

    /// Lets requests to Daytona fail, before and after they took effect.
    fn break_service(&self, place: &Place) {
        let Some(cloud) = place.cloud.as_ref().filter(|_| self.faulty_engine) else { return };
        for fault in ["status", "cut_before", "cut_after", "half_body"] {
            cloud.arm(&json!({ "fault": fault, "status": 503, "probability": 0.05 }));
        }
        let created = json!({
            "at": "create", "fault": "create_fails_after_alloc", "probability": 0.2
        });
        cloud.arm(&created);
    }

    fn strike(&self, running: &mut Running, tally: &mut Tally) {
        wait(self.kill_at);
        let Some(victims) = self.victims else { return };
        if !running.has_ended() {
            tally.kills += victims.kill(running) as u64;
        }
    }

    /// Types what people type while the disk is full, the clock is off and the engine fails.
    fn recover_under_stress(&self, place: &Place, tally: &mut Tally) -> String {
        let creel = place.creel_at(self.clocks.1);
        tally.jumps += u64::from(self.clocks.0 != self.clocks.1);
        let outputs = self.stressed.iter().map(|command| command.run(&creel));
        outputs.collect::<Vec<_>>().join("\n")
    }

    /// Waits for the work's own end, then recovers until nothing more is to be done.
    fn recover_in_peace(&self, place: &Place, mut running: Running) -> String {
        if self.victims.is_none() {
            running.signal("TERM");
        }
        let ended = eventually(PEACE, || running.has_ended());
        assert!(ended, "{self:?}: the work goes on\n{}", running.stderr());
        let mut said = running.wait().to_string();
        // What is in doubt keeps it from ending with 0; the verdict examines what is left.
        let _ = eventually(PEACE, || {
            let output = place.home.creel.run(["reconcile"]);
            let done = output.code() == Some(0) && place.home.processes().is_empty();
            said.push_str(&format!("\n{output}"));
            done
        });
        said
    }
}

/// Makes foreign things that the sweeps by label select.
fn plant_swept(docker: &Docker, seed: u64) {
    let name = format!("selected-1{seed:06}");
    let labels = Labels::from([(SWEPT.0.to_owned(), SWEPT.1.to_owned())]);
    docker.run(&ContainerSpec::sleeping(&name).labels(&labels)).unwrap();
    docker.create_network(&name, &labels).unwrap();
}

/// What rounds came to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    pub(crate) kills: u64,
    pub(crate) replacements: u64,
    pub(crate) full_disks: u64,
    pub(crate) jumps: u64,
    pub(crate) faults: u64,
    /// Kept because nothing proved whose they are, and reported.
    pub(crate) in_doubt: u64,
    /// What must stay empty: leaks, foreign things touched, runs not final, secrets found.
    pub(crate) broken: Vec<String>,
}

impl Tally {
    fn judge(&mut self, verdict: Verdict, story: impl Fn() -> String) {
        self.in_doubt += verdict.in_doubt.len() as u64;
        if !verdict.broken.is_empty() {
            self.broken.push(format!("{}\n{}", verdict.broken.join("\n"), story()));
        }
    }

    /// Adds what another round came to.
    pub(crate) fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.kills += other.kills;
        self.replacements += other.replacements;
        self.full_disks += other.full_disks;
        self.jumps += other.jumps;
        self.faults += other.faults;
        self.in_doubt += other.in_doubt;
        self.broken.extend(other.broken.iter().cloned());
    }

    #[track_caller]
    pub(crate) fn assert_good(&self) {
        assert!(self.broken.is_empty(), "{}", self.broken.join("\n\n"));
    }
}
