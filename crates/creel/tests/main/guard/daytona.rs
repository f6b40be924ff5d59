//! The Daytona gate: the official Python SDKs through a guard, on the local server.

use std::path::PathBuf;
use std::time::Duration;

use creel_daytona_server::{ApiVersion, Settings};
use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::wait::{eventually, eventually_some, throughout};
use serde_json::{Value, json};

use crate::cli::cloud::Cloud;
use crate::daytona::Daytona;
use crate::support::{Home, PATIENCE, assert_killed, kill, text_of};

/// The variables that name the virtual environments of the SDKs, the older one first.
const SDKS: [&str; 2] = ["CREEL_TEST_SDK_0_190", "CREEL_TEST_SDK_0_226"];
/// Retries as usual, but sooner.
const SETTINGS: &str = "[retry]\ninitial = \"50ms\"\ndeadline = \"5s\"\n";
/// The minutes that a sandbox lives without a renewal: an hour's lease, and the margin.
const MINUTES: i64 = 65;
/// An SDK takes a while to start on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(120);

fn python(sdk: &str) -> PathBuf {
    let environment =
        std::env::var_os(sdk).unwrap_or_else(|| panic!("{sdk} is not set: run cargo xtask test"));
    PathBuf::from(environment).join("bin/python")
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/guarded.py")
}

/// A home in a hollow Daytona, with look-alikes of what a guard makes.
struct Stage {
    home: Home,
    daytona: Daytona,
}

impl Stage {
    fn set_up(settings: Settings) -> Self {
        let daytona = Daytona::start(settings);
        let stage = Self { home: home_at(&daytona), daytona };
        let ledger = stage.home.ledger_id();
        for name in ["creel-0198", "faulty", "churn-1-1"] {
            stage.daytona.plant(name, "res_0198", &ledger);
        }
        stage
    }

    /// Starts the script under a guard with these flags.
    fn guard(&self, flags: &[&str], arguments: &[&str]) -> Running {
        guarded(&self.home, SDKS[1], flags, arguments)
    }

    /// Runs the script under a guard to its end; returns what it printed.
    fn run(&self, flags: &[&str], what: &str) -> Value {
        told(&self.guard(flags, &[what]).wait().expect_code(0))
    }

    /// Plants look-alikes of creates whose response is not recorded.
    fn copy_open_creates(&self) {
        let ledger = self.home.ledger_id();
        let mut open = self.home.open_records();
        open.retain(|record| record["kind"] == "sandbox" && record["id"].is_null());
        for record in open {
            let of = |field: &str| record[field].as_str().unwrap();
            self.daytona.plant(of("name"), of("resource"), &ledger);
        }
    }

    /// Checks that nothing is left but the look-alikes, which stand as they stood, and that the
    /// ledger is at its end.
    #[track_caller]
    fn assert_clean(&self) {
        self.assert_nothing_left();
        self.daytona.assert_decoys_untouched();
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        let left = self.daytona.left();
        assert!(left.is_empty(), "left: {left:#?}");
        let open = self.home.open_records();
        assert!(open.is_empty(), "open: {open:#?}");
    }
}

fn home_at(daytona: &Daytona) -> Home {
    let mut home = Home::without_engine();
    home.creel = daytona.point(home.creel.clone()).deadline(DEADLINE);
    home.configure(SETTINGS);
    home
}

fn guarded(home: &Home, sdk: &str, flags: &[&str], arguments: &[&str]) -> Running {
    let (python, script) = (python(sdk), script());
    let command = [&["guard"], flags, &["--", path(&python), path(&script)], arguments].concat();
    home.creel.spawn(command)
}

fn path(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the last line that the script printed.
fn told(output: &Output) -> Value {
    let last = output.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|_| panic!("not JSON\n{output}"))
}

/// Runs the script without a guard.
fn alone(creel: &Creel, sdk: &str, what: &str) -> Value {
    // The environment of the guarded one, taken from it.
    let output = Creel::without_docker(python(sdk), creel.home()).deadline(DEADLINE);
    let output = ["DAYTONA_API_URL", "DAYTONA_API_KEY"].iter().fold(output, |output, name| {
        let value = creel.variable(name).unwrap_or_else(|| panic!("{name} is not set"));
        output.env(name, value)
    });
    told(&output.run([path(&script()), what]).expect_code(0))
}

/// Takes out what tells whether a guard stood in between.
fn without_ours(mut seen: Value) -> (Value, Value) {
    let ours = seen.as_object_mut().unwrap().remove("ours").unwrap();
    (seen, ours)
}

/// Returns the settings of a service that knows times to live.
fn with_times_to_live() -> Settings {
    Settings { api: ApiVersion::V0_226, ..Settings::hollow() }
}

fn the_same_through_the_guard(sdk: &str) {
    let cloud = Cloud::with(&["--fast"]);
    let mut home = Home::without_engine();
    home.creel = cloud.given_to(home.creel.clone()).deadline(DEADLINE);
    let (direct, ours) = without_ours(alone(&home.creel, sdk, "use"));
    assert_eq!(ours, json!([false, false]));
    let (status, _) = cloud.ask("DELETE", "sandbox/guarded", &Value::Null);
    assert_eq!(status, 200);
    let gone = eventually(PATIENCE, || cloud.names().is_empty());
    assert!(gone, "{:?}", cloud.names());

    let events = home.path("events");
    let running = guarded(&home, sdk, &["--events", path(&events)], &["use"]);
    let output = running.wait().expect_code(0);
    let (through, ours) = without_ours(told(&output));
    assert_eq!(through, direct);
    assert_eq!(ours, json!([true, true]), "labels stay when they are replaced");
    assert_eq!(cloud.names(), Vec::<String>::new(), "{output}");
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
    let happened: Vec<(Value, Value)> = text_of(&events)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == "sandbox")
        .map(|line| (line["event"].clone(), line["name"].clone()))
        .collect();
    let of = |event: &str| happened.iter().filter(|(known, _)| known == event).count();
    assert_eq!((of("created"), of("released")), (2, 2), "{happened:?}");
    cloud.end();
}

#[test]
fn sdk_0_190_sees_the_same_through_a_guard() {
    the_same_through_the_guard(SDKS[0]);
}

#[test]
fn sdk_0_226_sees_the_same_through_a_guard() {
    the_same_through_the_guard(SDKS[1]);
}

#[test]
fn what_would_never_end_gets_an_end_and_what_the_client_chose_stays() {
    let stage = Stage::set_up(with_times_to_live());
    let seen = stage.run(&[], "switches");
    let expected = json!({
        "open": [MINUTES, -1, true],
        "harbor": [MINUTES, 0, true],
        "chosen": [5, 7, true],
        "changed": [MINUTES, -1, true],
        "ttl": [MINUTES, -1, true],
    });
    assert_eq!(seen, expected);
    stage.assert_clean();
}

#[test]
fn what_is_kept_for_ever_gets_no_end_and_what_is_kept_for_a_time_does() {
    let stage = Stage::set_up(with_times_to_live());
    let seen = stage.run(&["--keep"], "switches");
    assert_eq!(seen["open"], json!([15, -1, false]));
    assert_eq!(seen["harbor"], json!([0, 0, false]));
    assert_eq!(stage.daytona.left().len(), 4);
    let seen = stage.run(&["--keep", "--ttl", "2h"], "switches");
    assert_eq!(seen["open"], json!([125, -1, true]));
    assert_eq!(stage.daytona.left().len(), 8);
    for record in stage.home.open_records() {
        stage.home.creel.run(["rm", record["resource"].as_str().unwrap()]).expect_code(0);
    }
    stage.assert_clean();
}

#[test]
fn a_live_guard_keeps_its_sandboxes_alive_and_leaves_idleness_that_was_chosen_alone() {
    let mut settings = with_times_to_live();
    // A lease of two seconds makes six minutes, which are three seconds here.
    settings.delays.minute = Duration::from_millis(500);
    settings.delays.timer_period = Duration::from_millis(50);
    let stage = Stage::set_up(settings);
    stage.home.configure(&[SETTINGS, "[lease]\nduration = \"2s\"\n"].concat());
    let enough = stage.home.path("enough");
    let running = stage.guard(&[], &["wait", path(&enough)]);
    let made = eventually_some(PATIENCE, || serde_json::from_str::<Value>(&running.stdout()).ok());
    let made = made.unwrap_or_else(|| panic!("{}", running.stderr()));
    // Three times as long as it would live by itself.
    let idle = made[0].as_str().unwrap();
    let lives = || stage.daytona.sandboxes()[idle]["state"] == "started";
    assert!(throughout(Duration::from_secs(9), lives), "{:#?}", stage.daytona.sandboxes());
    std::fs::write(&enough, "").unwrap();
    let seen = told(&running.wait().expect_code(0));
    assert_eq!(seen, json!({"idle": "started", "chosen": "stopped"}));
    // The look-alikes have stopped by themselves: minutes are short here.
    stage.assert_nothing_left();
}

#[test]
fn a_create_over_the_limit_raises_the_errors_of_the_sdk() {
    let stage = Stage::set_up(Settings::hollow());
    for (sdk, error) in [(SDKS[0], "DaytonaAuthorizationError"), (SDKS[1], "DaytonaForbiddenError")]
    {
        let running = guarded(&stage.home, sdk, &["--max-sandboxes", "2"], &["limit"]);
        let seen = told(&running.wait().expect_code(0));
        assert_eq!(seen["refused"][0], error);
        let message = seen["refused"][1].as_str().unwrap();
        assert!(message.contains("2 sandboxes exist already (--max-sandboxes)"), "{message}");
        assert_eq!(seen["at_once"], 2);
        stage.assert_clean();
    }
}

#[test]
fn what_cannot_be_given_back_is_refused_unless_it_is_allowed() {
    let stage = Stage::set_up(Settings::hollow());
    let seen = stage.run(&[], "untracked");
    for path in
        ["snapshots", "volumes", "secret", "warm-pools", "docker-registry", "sandbox/x/snapshot"]
    {
        let (status, body) = (&seen[path][0], &seen[path][1]);
        assert_eq!((status, &body["statusCode"]), (&json!(403), &json!(403)), "{path}");
        assert_eq!(body["path"], format!("/api/{path}"));
        assert_eq!(body["error"], "Forbidden");
        assert!(body["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{body}");
        assert!(body["message"].as_str().unwrap().contains("--allow-untracked"), "{body}");
    }
    assert_eq!(seen["volume"][0], "DaytonaForbiddenError");
    assert_eq!(seen["another login"][0], 403);
    assert!(seen["another login"][1]["message"].as_str().unwrap().contains("another login"));
    assert_eq!(seen["another host"][0], 403);
    // The local server has none of these, and says so.
    let seen = stage.run(&["--allow-untracked"], "untracked");
    assert_eq!(seen["volumes"][0], 404);
    assert_eq!(seen["another login"][0], 401);
    assert_eq!(seen["another host"][0], 403);
    stage.assert_clean();
}

/// What a create that goes wrong comes to.
struct Fault {
    order: Value,
    /// What the SDK raises.
    error: &'static str,
    /// The exit code of the guard.
    code: i32,
}

#[test]
fn a_create_that_goes_wrong_is_told_as_without_a_guard_and_leaves_nothing() {
    let at = |fault: &str| json!({"at": "create", "fault": fault, "count": 1});
    let status = |status: u16, message: &str| json!({"at": "create", "fault": "status", "status": status, "message": message, "count": 1});
    let fault = |order, error, code| Fault { order, error, code };
    let faults = [
        fault(at("create_fails_after_alloc"), "DaytonaBadRequestError", 0),
        fault(at("cut_after"), "DaytonaConnectionError", 0),
        fault(at("half_body"), "DaytonaConnectionError", 0),
        fault(status(429, "Too Many Requests"), "DaytonaRateLimitError", 0),
        fault(status(400, "Total CPU limit exceeded"), "DaytonaBadRequestError", 0),
        // Whether something came of it is not known, and told; the watchdog looks on.
        fault(status(503, "Service Unavailable"), "DaytonaServiceUnavailableError", 125),
    ];
    let stage = Stage::set_up(Settings::hollow());
    stage.home.configure(&[SETTINGS, "[ledger]\nintent_window = \"1s\"\n"].concat());
    for Fault { order, error, code } in faults {
        stage.daytona.disarm();
        stage.daytona.arm(&order);
        let direct = alone(&stage.home.creel, SDKS[1], "fail");
        stage.daytona.remove_named("faulty");
        stage.daytona.disarm();
        stage.daytona.arm(&order);
        let output = stage.guard(&[], &["fail"]).wait().expect_code(code);
        assert_eq!(told(&output), json!({ "error": error }), "{order}");
        assert_eq!(direct, told(&output), "{order}");
        assert_eq!(stage.daytona.fired(), 1, "{order}");
        stage.home.await_quiet();
        stage.assert_clean();
    }
    let creates = stage.daytona.requests(Some("POST /sandbox"));
    assert_eq!(creates, 12, "every create is sent once");
}

#[test]
fn a_sandbox_that_cannot_be_deleted_is_a_failure_and_a_leak_on_the_certificate() {
    let denied = json!({"at": "delete", "fault": "status", "status": 403, "message": "not yours"});
    let faults = [
        (denied, "not yours"),
        (json!({"at": "delete", "fault": "stuck_destroying"}), "destroying"),
        (json!({"at": "delete", "fault": "errored_deleted"}), "kept by the service until"),
    ];
    for (fault, why) in faults {
        let stage = Stage::set_up(Settings::hollow());
        stage.daytona.arm(&fault);
        let proof = stage.home.path("proof.json");
        let output = stage.guard(&["--certificate", path(&proof)], &["fail"]).wait();
        let output = output.expect_code(125);
        assert!(output.stderr.contains("1 not verified gone"), "{fault}: {output}");
        let id = told(&output)["created"].clone();
        let proof: Value = serde_json::from_str(&text_of(&proof)).unwrap();
        assert_eq!(proof["verdict"], "leaking", "{fault}: {proof:#}");
        let text = proof.to_string();
        assert!(text.contains(id.as_str().unwrap()), "{fault}: {proof:#}");
        assert!(text.contains("faulty"), "{fault}: {proof:#}");
        let open = stage.home.open_records();
        assert_eq!((open.len(), &open[0]["id"]), (1, &id), "{fault}: {open:#?}");
        assert_eq!(open[0]["state"], "quarantined", "{fault}: {open:#?}");
        assert!(open[0]["reason"].as_str().unwrap().contains(why), "{fault}: {open:#?}");
        assert!(stage.daytona.sandboxes().contains_key(id.as_str().unwrap()), "{fault}");
        stage.daytona.assert_decoys_untouched();
    }
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Command,
    Guard,
    Everybody,
}

/// Runs a command that makes sandboxes without end, kills at a seeded instant, and recovers.
fn kill_at(seed: u64, victim: Victim) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut settings = Settings::hollow();
    settings.delays.create = Duration::from_millis(random.u64(5..80));
    let stage = Stage::set_up(settings);
    // Whoever waits for what may land late waits so long, and no longer.
    stage.home.configure(&[SETTINGS, "[ledger]\nintent_window = \"3s\"\n"].concat());
    let bystander = home_at(&stage.daytona);
    let enough = bystander.path("enough");
    let other = guarded(&bystander, SDKS[1], &[], &["wait", path(&enough)]);
    let told_by_other =
        eventually_some(PATIENCE, || serde_json::from_str::<Value>(&other.stdout()).ok());
    let theirs = told_by_other.unwrap_or_else(|| panic!("{}", other.stderr()));

    let running = stage.guard(&[], &["churn"]);
    let begun = eventually(PATIENCE, || stage.daytona.left().len() > 3);
    assert!(begun, "nothing is made: {}", running.stderr());
    stage.daytona.copy_labels();
    std::thread::sleep(Duration::from_millis(random.u64(0..1500)));
    match victim {
        Victim::Command => {
            kill(command_of(&stage.home));
            // Killed by signal 9.
            running.wait().expect_code(137);
        }
        Victim::Guard => {
            assert_killed(&running.kill());
            stage.copy_open_creates();
            stage.home.await_quiet();
        }
        Victim::Everybody => {
            stage.home.processes().into_iter().for_each(kill);
            assert_killed(&running.kill());
            stage.copy_open_creates();
            stage.home.await_quiet();
        }
    }
    let settled = eventually(PATIENCE, || {
        stage.home.reconcile_or_wait();
        stage.home.open_records().is_empty()
    });
    assert!(settled, "{:#?}", stage.home.open_records());
    let theirs: Vec<&str> = theirs.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let left = stage.daytona.left();
    let ids: Vec<&str> = left.iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(ids.len(), theirs.len(), "seed {seed}: {left:#?}");
    assert!(ids.iter().all(|id| theirs.contains(id)), "seed {seed}: {left:#?}");
    std::fs::write(&enough, "").unwrap();
    other.wait().expect_code(0);
    stage.assert_clean();
}

/// Returns the pid of the script.
fn command_of(home: &Home) -> i32 {
    let is_script = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"python"))
    };
    home.processes().into_iter().find(is_script).expect("the script runs")
}

#[test]
fn a_killed_command_leaves_no_sandbox() {
    kill_at(1, Victim::Command);
}

#[test]
fn a_killed_guard_leaves_no_sandbox() {
    kill_at(2, Victim::Guard);
}

#[test]
fn with_guard_command_and_watchdog_killed_reconcile_leaves_no_sandbox() {
    kill_at(3, Victim::Everybody);
}
