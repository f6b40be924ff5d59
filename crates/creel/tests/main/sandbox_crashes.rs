//! The crash matrix of sandboxes: every crashpoint, and every fault of the service there.
//!
//! A cell arms one fault, acquires one sandbox, dies at one crashpoint, and is followed by
//! recoveries. Afterwards nothing of it is left, or a failed release is quarantined by its id
//! and reported by the exit code; decoys are unchanged; the fault has fired; the
//! service received no more requests than declared; and one more recovery changes
//! nothing.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use creel_daytona_server::Settings;
use creel_model::crashpoint::Crashpoint;
use creel_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::daytona::Daytona;
use crate::support::{Home, PATIENCE, assert_killed};

/// The usual retries with shorter delays, and waits that are short enough for a test.
const SETTINGS: &str = "[retry]\ninitial = \"50ms\"\ndeadline = \"5s\"\n\
                        [daytona]\nlongest_wait = \"2s\"\n";
/// More settings, under which unanswered creates count as never made at once.
const NO_WINDOW: &str = "[ledger]\nintent_window = \"0s\"\n";
/// The number of concurrent cells: most of the time they wait.
const AT_ONCE: usize = 6;

/// The maximum number of requests of one cell: one supervisor, two recoveries with something
/// to do, and one without.
pub(crate) const MAX_REQUESTS: u64 = 40;
/// The maximum number of deletes of one process: one, and all retries that the settings allow.
const MAX_DELETES_PER_PROCESS: u64 = 4;

/// What finally happens to the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxOutcome {
    /// It is released.
    Gone,
    /// It was never created.
    NeverMade,
    /// Its release fails, and it is quarantined.
    Quarantined,
    /// The service keeps it until a date although its delete was accepted.
    Kept,
}

/// A fault of the service.
#[derive(Debug, Clone)]
pub(crate) struct ServiceFault {
    pub(crate) name: &'static str,
    spec: Value,
    ending: SandboxOutcome,
    /// How many recoveries fail before the fault has passed.
    spoils: usize,
    /// The last crashpoint that a supervisor reaches under it.
    last_place: Crashpoint,
}

impl ServiceFault {
    /// Returns a transient fault, under which everything is released at once.
    fn passing(name: &'static str, spec: Value) -> Self {
        let (ending, last_place) = (SandboxOutcome::Gone, Crashpoint::VerifiedNotClosed);
        Self { name, spec, ending, spoils: 0, last_place }
    }

    /// Returns a fault under which no sandbox is created.
    fn preventing(name: &'static str, spec: Value) -> Self {
        let (ending, last_place) = (SandboxOutcome::NeverMade, Crashpoint::CreatedNotRecorded);
        Self { ending, last_place, ..Self::passing(name, spec) }
    }

    /// Returns a fault under which the sandbox stays. A supervisor reaches only this crashpoint.
    fn lasting(name: &'static str, spec: Value, last_place: Crashpoint) -> Self {
        Self { ending: SandboxOutcome::Quarantined, last_place, ..Self::passing(name, spec) }
    }

    /// Returns every fault.
    pub(crate) fn all() -> Vec<Self> {
        [Self::of_creates(), Self::of_reads(), Self::of_deletes()].concat()
    }

    fn of_creates() -> Vec<Self> {
        let at = |fault: &str| json!({"at": "create", "fault": fault, "count": 1});
        let status = |status: u16, message: &str| {
            json!({"at": "create", "fault": "status", "status": status, "message": message,
                "headers": {"Retry-After-sandbox-create": "1"}, "count": 1})
        };
        vec![
            Self::passing("create fails after it made one", at("create_fails_after_alloc")),
            Self::passing("create, answer cut", at("cut_after")),
            Self::passing("create, half an answer", at("half_body")),
            Self::preventing("create, cut before", at("cut_before")),
            Self::preventing("create, web page", at("html")),
            Self::preventing("create, throttled", status(429, "Too Many Requests")),
            Self::preventing("create, 503", status(503, "Service Unavailable")),
            Self::preventing("create, quota", status(400, "Total CPU limit exceeded")),
            Self::lasting("stuck in creating", at("stuck_starting"), Crashpoint::ReleaseSent),
        ]
    }

    fn of_reads() -> Vec<Self> {
        let at = |at: &str, fault: &str, count: u64| json!({"at": at, "fault": fault, "status": 503, "count": count});
        vec![
            Self::passing("inspect, cut before", at("get", "cut_before", 2)),
            Self::passing("inspect, half a response", at("get", "half_body", 2)),
            Self::passing("inspect, 503", at("get", "status", 3)),
            Self {
                // A supervisor that cannot inspect leaves the rest to a recovery.
                last_place: Crashpoint::CreatedNotRecorded,
                spoils: 1,
                ..Self::passing(
                    "inspect, web page",
                    json!({"at": "get", "fault": "html", "count": 1}),
                )
            },
            Self::passing("list, cut before", at("list", "cut_before", 2)),
            Self::passing("list, half an answer", at("list", "half_body", 2)),
            Self::passing("list, 503", at("list", "status", 3)),
        ]
    }

    fn of_deletes() -> Vec<Self> {
        let at = |fault: &str| json!({"at": "delete", "fault": fault, "count": 1});
        let status = |status: u16, count: u64| {
            json!({"at": "delete", "fault": "status", "status": status, "count": count,
                "headers": {"Retry-After-sandbox-lifecycle": "1"}})
        };
        let for_ever = |fault: &str| json!({"at": "delete", "fault": fault});
        vec![
            Self::passing("delete, cut before", at("cut_before")),
            Self::passing("delete, answer cut", at("cut_after")),
            Self::passing("delete, half an answer", at("half_body")),
            Self::passing("delete, web page", at("html")),
            Self::passing("delete, throttled", status(429, 1)),
            Self::passing("delete, 503", status(503, 2)),
            Self {
                last_place: Crashpoint::ReleaseSent,
                spoils: 2,
                ..Self::passing("delete, 503 beyond all retries", status(503, 7))
            },
            Self::passing("list flaps after a delete", for_ever("flap")),
            Self::lasting(
                "stuck in destroying",
                for_ever("stuck_destroying"),
                Crashpoint::ReleasedNotVerified,
            ),
            Self {
                ending: SandboxOutcome::Kept,
                ..Self::lasting(
                    "destroy fails unseen",
                    for_ever("errored_deleted"),
                    Crashpoint::ReleasedNotVerified,
                )
            },
        ]
    }

    /// Returns whether a supervisor reaches a crashpoint under this fault.
    fn lets_reach(&self, point: Crashpoint) -> bool {
        place(point) <= place(self.last_place)
    }

    /// Returns whether the fault can fire when the supervisor dies there: the affected request is
    /// sent by the supervisor before, or by a recovery.
    fn strikes(&self, point: Crashpoint) -> bool {
        match self.spec["at"].as_str().unwrap() {
            "list" => true,
            "get" => place(point) >= place(Crashpoint::AfterIntent),
            _ => place(point) >= place(Crashpoint::CreateSent),
        }
    }

    /// Returns what happens to a sandbox whose supervisor dies there.
    fn ending(&self, point: Crashpoint) -> SandboxOutcome {
        if place(point) <= place(Crashpoint::AfterIntent) {
            SandboxOutcome::NeverMade
        } else {
            self.ending
        }
    }
}

fn place(point: Crashpoint) -> usize {
    Crashpoint::ALL.iter().position(|known| *known == point).unwrap()
}

/// A home and its own service.
struct FaultCell<'a> {
    point: Crashpoint,
    fault: &'a ServiceFault,
    home: Home,
    daytona: Daytona,
}

impl<'a> FaultCell<'a> {
    fn set_up(point: Crashpoint, fault: &'a ServiceFault) -> Self {
        let mut settings = Settings::hollow();
        // A stuck create responds with the current state.
        settings.delays.answer = Duration::from_millis(300);
        let daytona = Daytona::start(settings);
        let mut home = Home::without_engine();
        home.creel = daytona.point(home.creel.clone());
        home.configure(SETTINGS);
        daytona.plant("creel-0198", "res_0198", &home.ledger_id());
        daytona.arm(&fault.spec);
        Self { point, fault, home, daytona }
    }

    /// Runs the cell.
    fn run(&self) -> CellResult {
        self.crash();
        if let Some(record) = self.home.records().last() {
            let of = |field: &str| record[field].as_str().unwrap();
            self.daytona.plant(of("name"), of("resource"), &self.home.ledger_id());
        }
        self.recover();
        let converged = self.home.ledger_state();
        self.home.creel.run(["reconcile"]).expect_code(self.code());
        assert_eq!(self.home.ledger_state(), converged, "one more recovery changed something");
        self.close_unanswered_creates();

        let fired = self.daytona.fired();
        assert_eq!(fired > 0, self.fault.strikes(self.point), "it fired {fired} times");
        self.daytona.assert_decoys_untouched();
        let requests = self.assert_within_bounds();
        CellResult { fault: self.fault.name, ending: self.ending(), fired, requests }
    }

    /// Returns the exit code of a recovery: a resource is quarantined, or a create may still land.
    fn code(&self) -> i32 {
        let is_waited_for = |record: &Value| record["state"] == "intended";
        let waits = self.home.open_records().iter().any(is_waited_for);
        if self.ending() == SandboxOutcome::Quarantined || waits { 3 } else { 0 }
    }

    fn ending(&self) -> SandboxOutcome {
        self.fault.ending(self.point)
    }

    /// Acquires a sandbox and dies at the crashpoint, if the fault lets it get that far.
    fn crash(&self) {
        let (output, reached) = self.home.hold_until(self.point, &["--no-watchdog", "--sandbox"]);
        assert_eq!(reached, self.fault.lets_reach(self.point), "{output}");
        if reached {
            return assert_killed(&output);
        }
        // It could not do its work, and reports that.
        assert!(matches!(output.code(), Some(3 | 7)), "{output}");
    }

    /// Recovers as often as the fault makes it fail, and once more.
    fn recover(&self) {
        let mut rounds = 0;
        let last = loop {
            rounds += 1;
            let output = self.home.creel.run(["reconcile"]);
            if rounds > self.fault.spoils || output.code() == Some(0) {
                break output;
            }
            // A resource that is not gone yet is reported, and stays on record for the next one.
            assert!(matches!(output.code(), Some(3 | 7)), "{output}");
        };
        match self.ending() {
            SandboxOutcome::Quarantined => {
                self.assert_quarantined(last.expect_code(3).stdout.as_str(), "stuck in ");
            }
            // The first process that meets it fails. A supervisor that was not killed has met it.
            SandboxOutcome::Kept => {
                let code = if self.fault.lets_reach(self.point) { 3 } else { 0 };
                let report = last.expect_code(code);
                self.assert_quarantined(&report.stdout, "kept by the service until ");
            }
            SandboxOutcome::Gone | SandboxOutcome::NeverMade => {
                let output = last.expect_code(self.code());
                let left = self.daytona.left();
                assert!(left.is_empty(), "left: {left:#?}\n{output}");
            }
        }
    }

    /// Asserts that one sandbox is left, on record by its id, with a reason.
    fn assert_quarantined(&self, report: &str, why: &str) {
        let left = self.daytona.left();
        assert_eq!(left.len(), 1, "{left:#?}");
        let open = self.home.open_records();
        assert_eq!(open.len(), 1, "{open:#?}");
        assert_eq!((&open[0]["state"], &open[0]["id"]), (&json!("quarantined"), &left[0]["id"]));
        let reason = open[0]["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}\n{report}");
    }

    /// Waits until a late create can no longer land, and asserts that the ledger is closed.
    fn close_unanswered_creates(&self) {
        self.home.configure(&[SETTINGS, NO_WINDOW].concat());
        let code = if self.ending() == SandboxOutcome::Quarantined { 3 } else { 0 };
        self.home.creel.run(["reconcile"]).expect_code(code);
        let open = self.home.open_records();
        let expected = usize::from(matches!(
            self.ending(),
            SandboxOutcome::Quarantined | SandboxOutcome::Kept
        ));
        assert_eq!(open.len(), expected, "still open without a window: {open:#?}");
        if self.ending() == SandboxOutcome::NeverMade && self.point != Crashpoint::BeforeIntent {
            assert_eq!(self.home.last_events().last().unwrap()["event"], "never_created");
        }
    }

    fn assert_within_bounds(&self) -> u64 {
        let total = self.daytona.requests(None);
        // Each later recovery tries once to release what stays on record.
        let stays = matches!(self.ending(), SandboxOutcome::Quarantined | SandboxOutcome::Kept);
        let tries = if stays { 2 } else { 1 };
        let routes = self.daytona.requests_by_route();
        assert!(total <= MAX_REQUESTS * tries, "{total} requests: {routes:#}");
        assert!(self.daytona.requests(Some("POST /sandbox")) <= 1, "a create is sent once");
        let deletes = self.daytona.requests(Some("DELETE /sandbox/{s}"));
        let processes = 4 + self.fault.spoils as u64;
        assert!(deletes <= MAX_DELETES_PER_PROCESS * processes, "{deletes} deletes");
        total
    }
}

/// The result of a cell.
#[derive(Debug)]
pub(crate) struct CellResult {
    pub(crate) fault: &'static str,
    pub(crate) ending: SandboxOutcome,
    /// How often the fault fired.
    pub(crate) fired: u64,
    /// How many requests the service received.
    pub(crate) requests: u64,
}

/// Runs jobs concurrently, and names all that fail.
fn at_once<J: Send + Sync, T: Send>(
    jobs: &[J],
    name: impl Fn(&J) -> String + Sync,
    run: impl Fn(&J) -> T + Sync,
) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let failed = Mutex::new(Vec::new());
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::SeqCst)) {
            match catch_unwind(AssertUnwindSafe(|| run(job))) {
                Ok(result) => done.lock().unwrap().push(result),
                Err(_) => failed.lock().unwrap().push(name(job)),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "these failed: {failed:#?}");
    done.into_inner().unwrap()
}

/// Runs cells.
pub(crate) fn run_all(cells: &[(Crashpoint, ServiceFault)]) -> Vec<CellResult> {
    let name =
        |(point, fault): &(Crashpoint, ServiceFault)| format!("{} at {}", fault.name, point.name());
    at_once(cells, name, |(point, fault)| FaultCell::set_up(*point, fault).run())
}

/// Acquires three sandboxes while one request in ten fails, ends the supervisor at a random
/// instant, and recovers while requests keep failing. Returns the states of the records
/// that were left open.
fn end_at_random(seed: u64) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let daytona = Daytona::start(Settings::hollow());
    let mut home = Home::without_engine();
    home.creel = daytona.point(home.creel.clone());
    home.configure(&[SETTINGS, "[ledger]\nintent_window = \"2s\"\n"].concat());
    daytona.plant("creel-0198", "res_0198", &home.ledger_id());
    for fault in ["status", "cut_before", "cut_after", "half_body"] {
        daytona.arm(&json!({"fault": fault, "status": 503, "probability": 0.026}));
    }
    let hold = ["dev", "hold", "--for", "0s", "--no-watchdog", "--sandbox", "--count", "3"];
    let supervisor = home.creel.spawn(hold);
    thread::sleep(Duration::from_millis(random.u64(0..4_000)));
    supervisor.kill();
    let open = home.open_records();
    for record in &open {
        let of = |field: &str| record[field].as_str().unwrap();
        daytona.plant(of("name"), of("resource"), &home.ledger_id());
    }
    let converged = eventually(PATIENCE, || {
        // It fails correctly while faults outlast its retries.
        home.creel.run(["reconcile"]);
        home.open_records().is_empty()
    });
    assert!(converged, "{:#?}", home.open_records());
    let left = daytona.left();
    assert!(left.is_empty(), "left: {left:#?}");
    daytona.assert_decoys_untouched();
    open.iter().map(|record| record["state"].as_str().unwrap().to_owned()).collect()
}

/// Ends this many supervisors at random instants. Returns how often each state was left open.
pub(crate) fn end_many_at_random(count: u64) -> BTreeMap<String, u32> {
    let seeds: Vec<u64> = (0..count).collect();
    let states = at_once(&seeds, |seed| format!("seed {seed}"), |seed| end_at_random(*seed));
    let mut found = BTreeMap::new();
    for state in states.into_iter().flatten() {
        *found.entry(state).or_default() += 1;
    }
    found
}

/// Every fault at one crashpoint where it fires, and in total every crashpoint.
#[test]
fn a_crash_under_every_fault_of_the_service_leaves_no_sandbox() {
    let cell = |(number, fault): (usize, ServiceFault)| {
        let places: Vec<Crashpoint> =
            Crashpoint::ALL.into_iter().filter(|point| fault.strikes(*point)).collect();
        (places[number % places.len()], fault)
    };
    let cells: Vec<(Crashpoint, ServiceFault)> =
        ServiceFault::all().into_iter().enumerate().map(cell).collect();
    for point in Crashpoint::ALL {
        assert!(cells.iter().any(|(known, _)| *known == point), "{point:?} is in no cell");
    }
    let outcomes = run_all(&cells);
    let most = outcomes.iter().map(|outcome| outcome.requests).max().unwrap();
    println!("{} cells, at most {most} requests each", outcomes.len());
}
