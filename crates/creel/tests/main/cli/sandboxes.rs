//! `--provider daytona`: list, sweep, apply, stop and rm against a local server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use creel_testkit::creel::{Creel, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cloud::{Cloud, stem};
use super::fixture::{BINARY, Hold, read_json, reason, results, run, text};

/// Slightly more than a day, in seconds.
const OLD: u64 = 25 * 3600;

/// Every Daytona state that a listing can show.
const STATES: [&str; 21] = [
    "archived",
    "archiving",
    "build_failed",
    "building_snapshot",
    "creating",
    "destroying",
    "error",
    "forking",
    "paused",
    "pausing",
    "pending_build",
    "pulling_snapshot",
    "resizing",
    "restoring",
    "resuming",
    "snapshotting",
    "started",
    "starting",
    "stopped",
    "stopping",
    "unknown",
];

/// A cloud, and a binary that knows only it and this machine's processes.
struct DaytonaCli {
    cloud: Cloud,
    creel: Creel,
    home: TempDir,
}

impl DaytonaCli {
    fn new() -> Self {
        let (cloud, home) = (Cloud::start(), tempfile::tempdir().unwrap());
        let creel = cloud.given_to(Creel::without_docker(BINARY, home.path()));
        Self { cloud, creel, home }
    }

    #[track_caller]
    fn run(&self, line: &str) -> Output {
        run(&self.creel, line)
    }

    /// Creates a sandbox in a state.
    fn in_state(&self, name: &str, state: &str) -> String {
        self.cloud.plant(name, json!({ "state": state }))
    }

    /// Returns what a dry run would release, without the numbers in the names, sorted.
    #[track_caller]
    fn planned(&self, flags: &str) -> Vec<String> {
        let output = self.run(&format!("sweep --provider daytona --json {flags}")).expect_code(0);
        stems(&results(&output, "planned"))
    }

    /// Returns the names in a list, in the format of [`DaytonaCli::planned`].
    #[track_caller]
    fn listed(&self, flags: &str) -> Vec<String> {
        let json = self.run(&format!("ls --provider daytona --json {flags}")).expect_code(0).json();
        let rows = json["resources"].as_array().unwrap();
        stems(&rows.iter().map(|row| text(row, "name").to_owned()).collect::<Vec<_>>())
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }
}

fn stems(names: &[String]) -> Vec<String> {
    let cut = |name: &String| stem(name.trim_start_matches("sandbox "));
    let mut names: Vec<String> = names.iter().map(cut).collect();
    names.sort();
    names
}

/// Sandboxes that resemble those that a test selects, and must not change.
struct SandboxDecoys(Vec<(String, Value)>);

impl SandboxDecoys {
    fn plant(cloud: &Cloud) -> Self {
        let near = [
            ("my-job", json!({ "labels": { "job": "nightly2" } })),
            ("job2", json!({ "labels": { "Job": "nightly" } })),
            ("jo", json!({ "labels": { "jo": "nightly", "xjob": "nightly" } })),
            ("DESTROYED_job", json!({ "labels": { "job": "" } })),
        ];
        let ids = near.map(|(name, seed)| cloud.plant(name, seed));
        Self(ids.into_iter().map(|id| (id.clone(), cloud.sandbox(&id))).collect())
    }

    #[track_caller]
    fn assert_untouched(&self, cloud: &Cloud) {
        for (id, before) in &self.0 {
            assert_eq!(&cloud.sandbox(id), before);
        }
    }
}

#[test]
fn a_list_shows_sandboxes_with_state_age_and_last_activity() {
    let fixture = DaytonaCli::new();
    let seed = json!({
        "state": "stopped", "age_seconds": 3 * 86_400, "idle_seconds": OLD,
        "labels": { "job": "nightly" }
    });
    let id = fixture.cloud.plant("box", seed);
    let output = fixture.run("ls --provider daytona --json").expect_code(0);
    let json = output.json();
    let row = &json["resources"][0];
    let shown = ["provider", "kind", "id", "state"].map(|key| text(row, key));
    assert_eq!(shown, ["daytona", "sandbox", id.as_str(), "stopped"]);
    assert_eq!((&row["labels"], &row["owner"]), (&json!({ "job": "nightly" }), &Value::Null));
    assert!(text(row, "created_at") < text(row, "last_active_at"), "{output}");
    assert_eq!(json["resources"].as_array().unwrap().len(), 1);
    let table = fixture.run("ls").expect_code(0).stdout;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["sandbox", &id, text(&json["resources"][0], "name"), "stopped", "3d"]);
}

#[test]
fn every_state_can_be_listed_and_swept_by() {
    let fixture = DaytonaCli::new();
    for state in STATES {
        fixture.in_state(state, state);
    }
    for state in STATES {
        assert_eq!(fixture.listed(&format!("--state {state}")), [state]);
        assert_eq!(fixture.planned(&format!("--state {state}")), [state]);
    }
    assert_eq!(fixture.planned("--state stopped --state error"), ["error", "stopped"]);
    assert_eq!(fixture.listed("--state running"), [""; 0], "a state of containers");
    let typo = fixture.run("ls --provider daytona --state stoped").expect_code(2);
    assert!(typo.stderr.contains("did you mean `stopped`?"), "{typo}");
}

#[test]
fn age_counts_from_the_creation_and_idleness_from_the_last_activity() {
    let fixture = DaytonaCli::new();
    let plant = |name: &str, age: u64, idle: u64| {
        fixture.cloud.plant(name, json!({ "age_seconds": age, "idle_seconds": idle }));
    };
    plant("new", 60, 60);
    plant("old-busy", OLD, 60);
    plant("old-idle", OLD, OLD);
    plant("older", 3 * OLD, 3 * OLD);
    assert_eq!(fixture.planned("--older-than 1d"), ["old-busy", "old-idle", "older"]);
    assert_eq!(fixture.planned("--idle-for 1d"), ["old-idle", "older"]);
    assert_eq!(fixture.planned("--older-than 1d --idle-for 2d"), ["older"]);
    assert_eq!(fixture.listed("--idle-for 1d"), ["old-idle", "older"]);
    assert_eq!(fixture.planned("--older-than 4d"), [""; 0]);
    let output =
        fixture.run("sweep --provider daytona --idle-for 1d --apply --json").expect_code(0);
    assert_eq!(stems(&results(&output, "gone")), ["old-idle", "older"]);
    assert_eq!(fixture.cloud.there(), ["new", "old-busy"]);
}

#[test]
fn labels_and_names_match_exactly_and_decoys_survive() {
    let fixture = DaytonaCli::new();
    let decoys = SandboxDecoys::plant(&fixture.cloud);
    let nightly = json!({ "labels": { "job": "nightly", "team": "a" } });
    fixture.cloud.plant("job", nightly.clone());
    fixture.cloud.plant("job", json!({ "labels": { "job": "nightly" } }));
    assert_eq!(fixture.planned("--label job=nightly"), ["job", "job"]);
    assert_eq!(fixture.planned("--label job=nightly --label team"), ["job"]);
    assert_eq!(fixture.planned("--label job"), ["DESTROYED_job", "job", "job", "my-job"]);
    assert_eq!(fixture.planned("--name job.*"), ["job", "job"]);
    assert_eq!(fixture.planned("--name job"), [""; 0]);

    // A dry run changes nothing, and sends no request that could.
    fixture.cloud.requests("");
    fixture.planned("--label job=nightly");
    assert_eq!(fixture.cloud.requests("DELETE /sandbox/{s}"), 0);

    let line = "sweep --provider daytona --label job=nightly --apply --json";
    let output = fixture.run(line).expect_code(0);
    assert_eq!(stems(&results(&output, "gone")), ["job", "job"]);
    assert_eq!(fixture.cloud.requests("DELETE /sandbox/{s}"), 2, "one delete for each");
    decoys.assert_untouched(&fixture.cloud);
    let again = fixture.run(line).expect_code(0);
    assert_eq!(again.json()["planned"], 0);
}

#[test]
fn presets_select_what_the_help_and_the_page_say() {
    let fixture = DaytonaCli::new();
    for state in STATES {
        fixture.in_state(&format!("new-{state}"), state);
        // The cloud itself stops an idle one.
        let old = json!({ "state": state, "age_seconds": OLD, "idle_seconds": 0 });
        fixture.cloud.plant(&format!("old-{state}"), old);
    }
    let stopped = [
        "new-build_failed",
        "new-error",
        "new-stopped",
        "old-build_failed",
        "old-error",
        "old-stopped",
    ];
    assert_eq!(fixture.planned("--preset stopped"), stopped);
    let mut default = stopped.map(str::to_owned).to_vec();
    default.push("old-archived".to_owned());
    default.sort();
    assert_eq!(fixture.planned("--preset default"), default);
    let mut aggressive: Vec<String> = STATES.iter().map(|state| format!("old-{state}")).collect();
    aggressive.extend(["archived", "build_failed", "error", "stopped"].map(|s| format!("new-{s}")));
    aggressive.sort();
    assert_eq!(fixture.planned("--preset aggressive"), aggressive);
    // Other flags narrow a preset further.
    assert_eq!(fixture.planned("--preset stopped --name old-*"), stopped[3..]);
    assert_eq!(fixture.planned("--preset aggressive --idle-for 2d"), [""; 0]);
}

#[test]
fn a_saved_plan_releases_exactly_what_it_names_and_spares_changed_sandboxes() {
    let fixture = DaytonaCli::new();
    let decoys = SandboxDecoys::plant(&fixture.cloud);
    let labels = json!({ "job": "nightly" });
    let kept = fixture.cloud.plant("job-a", json!({ "labels": labels, "state": "stopped" }));
    let woken = fixture.cloud.plant("job-b", json!({ "labels": labels, "state": "stopped" }));
    let plan = fixture.path("plan.json");
    let line = format!("sweep --provider daytona --label job=nightly --plan-out {plan}");
    fixture.run(&line).expect_code(0);
    assert_eq!(fixture.cloud.state(&kept), "stopped");
    fixture.cloud.ask("POST", &format!("sandbox/{woken}/start"), &Value::Null);
    fixture.cloud.plant("job-later", json!({ "labels": labels }));

    let output = fixture.run(&format!("apply {plan} --json")).expect_code(4);
    assert_eq!(stems(&results(&output, "gone")), ["job-a"]);
    assert_eq!(stems(&results(&output, "drifted")), ["job-b"]);
    assert_eq!(fixture.cloud.state(&woken), "started");
    assert_eq!(fixture.cloud.there().iter().filter(|name| name.starts_with("job-")).count(), 2);
    decoys.assert_untouched(&fixture.cloud);
    // The plan is valid for this cloud only.
    let other = DaytonaCli::new();
    let refused = other.run(&format!("apply {plan}")).expect_code(4);
    assert!(refused.stderr.starts_with("error[CR0035]"), "{refused}");
    let plan = read_json(fixture.home.path().join("plan.json").as_path());
    assert_eq!(plan["worlds"].as_array().unwrap().len(), 1, "{plan}");
    assert!(!plan.to_string().contains(fixture.cloud.key()), "a plan holds no secret");
}

#[test]
fn named_sandboxes_are_stopped_or_released() {
    let fixture = DaytonaCli::new();
    let decoys = SandboxDecoys::plant(&fixture.cloud);
    let first = fixture.in_state("job", "started");
    let second = fixture.in_state("job", "started");
    let output = fixture.run(&format!("stop {first} --provider daytona --json")).expect_code(0);
    assert_eq!((&output.json()["stopped"], &output.json()["failed"]), (&json!(1), &json!(0)));
    assert_eq!(fixture.cloud.state(&first), "stopped");
    assert_eq!(fixture.cloud.state(&second), "started");
    fixture.run(&format!("stop {first} --provider daytona")).expect_code(0);

    // By a prefix of its id, by kind and name, by its full name.
    fixture.run(&format!("rm {}", &first[..13])).expect_code(0);
    let name = fixture.cloud.sandbox(&second)["name"].as_str().unwrap().to_owned();
    fixture.run(&format!("rm sandbox/{name} --provider daytona")).expect_code(0);
    assert_eq!([fixture.cloud.state(&first), fixture.cloud.state(&second)], ["404", "404"]);
    let output = fixture.run(&format!("rm {name}")).expect_code(2);
    assert!(output.stderr.starts_with("error[CR0037]"), "{output}");
    decoys.assert_untouched(&fixture.cloud);

    let protected = fixture.cloud.plant("db", json!({ "labels": { "dev.creel.protect": "" } }));
    fixture.run(&format!("rm {protected}")).expect_code(4);
    let output = fixture.run("sweep --provider daytona --name db.* --apply --json").expect_code(0);
    assert_eq!(stems(&results(&output, "spared")), ["db"]);
    assert_eq!(fixture.cloud.state(&protected), "started");
}

#[test]
fn a_refused_stop_is_reported() {
    let fixture = DaytonaCli::new();
    let id = fixture.in_state("job", "started");
    fixture.cloud.arm(&json!({ "at": "stop", "fault": "status", "status": 403 }));
    let output = fixture.run(&format!("stop {id} --json")).expect_code(3);
    assert_eq!(output.json()["failed"], 1);
    fixture.cloud.heal();
    fixture.cloud.arm(&json!({ "at": "stop", "fault": "cut_before", "count": 1 }));
    fixture.run(&format!("stop {id}")).expect_code(0);
    assert_eq!(fixture.cloud.state(&id), "stopped");
}

#[test]
fn caps_and_confirmation_hold_for_sandboxes_too() {
    let fixture = DaytonaCli::new();
    for _ in 0..3 {
        fixture.in_state("job", "stopped");
    }
    fixture.run("sweep --provider daytona --apply --kind sandbox").expect_code(4);
    fixture.run("sweep --provider daytona --preset stopped --apply --max 2").expect_code(4);
    fixture.run("sweep --provider daytona --all --apply").expect_code(4);
    assert_eq!(fixture.cloud.there().len(), 3);
    let output = fixture.run("sweep --provider daytona --all --apply --yes --json").expect_code(0);
    assert_eq!(output.json()["gone"], 3);
}

#[test]
fn a_missing_or_refused_key_is_reported_with_its_variable() {
    let fixture = DaytonaCli::new();
    let id = fixture.in_state("job", "stopped");
    let keyless = fixture.creel.clone().env_remove("DAYTONA_API_KEY");
    for line in ["ls", "sweep --preset stopped --apply", "rm x", "stop x"] {
        let output = run(&keyless, &format!("{line} --provider daytona")).expect_code(7);
        assert!(output.stderr.starts_with("error[CR0022]"), "{output}");
        assert!(output.stderr.contains("DAYTONA_API_KEY is not set"), "{output}");
        assert!(output.stderr.contains("hint: set DAYTONA_API_KEY"), "{output}");
    }
    // If it is not selected by name, it is noted and skipped.
    run(&keyless, "ls").expect_code(0);

    let wrong = fixture.creel.clone().env("DAYTONA_API_KEY", "dtn_nobody-has-this");
    for line in ["ls", "sweep --preset stopped --apply", "rm x", "reconcile"] {
        fixture.cloud.requests("");
        let output = run(&wrong, line).expect_code(7);
        assert!(output.stderr.contains("check DAYTONA_API_KEY"), "{output}");
        assert!(!output.stderr.contains("nobody-has-this"), "{output}");
        assert!(fixture.cloud.requests("GET /sandbox") <= 1, "a refused key is not tried again");
    }
    let lone =
        fixture.creel.clone().env_remove("DAYTONA_API_KEY").env("DAYTONA_JWT_TOKEN", "a.b.c");
    let output = run(&lone, "ls").expect_code(2);
    assert!(output.stderr.contains("DAYTONA_ORGANIZATION_ID"), "{output}");
    assert_eq!(fixture.cloud.state(&id), "stopped");
}

#[test]
fn a_wrong_address_is_reported_with_its_variable() {
    let fixture = DaytonaCli::new();
    let at = |url: &str| fixture.creel.clone().env("DAYTONA_API_URL", url);
    let free = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let base = fixture.cloud.url().trim_end_matches("/api").to_owned();
    for (url, exit) in [
        ("app.daytona.io/api".to_owned(), 2),
        ("ftp://127.0.0.1/api".to_owned(), 2),
        (format!("http://{free}/api"), 7),
        (format!("https://{}", base.trim_start_matches("http://")), 7),
        ("http://daytona.invalid/api".to_owned(), 7),
        // A server responds there, but not with this API.
        (base.clone(), 7),
        (format!("{base}/elsewhere"), 7),
    ] {
        for line in ["ls --provider daytona", "sweep --provider daytona --preset stopped --apply"] {
            let output = run(&at(&url), line).expect_code(exit);
            assert!(output.stderr.contains("DAYTONA_API_URL"), "{url}\n{output}");
            assert!(output.stderr.contains("\nhint: "), "{url}\n{output}");
        }
    }
    for line in ["ls --json", "doctor"] {
        fixture.cloud.arm(&json!({ "at": "list", "fault": "html" }));
        let output = fixture.run(line).expect_code(7);
        let shown = format!("{}{}", output.stdout, output.stderr);
        assert!(shown.contains("captive portal") && shown.contains("DAYTONA_API_URL"), "{output}");
        fixture.cloud.heal();
    }
}

#[test]
fn unfinished_releases_are_reported_separately_with_exit_code_three() {
    let fixture = DaytonaCli::new();
    let label = |name: &str| json!({ "labels": { "case": name } });
    let sweep = |name: &str| {
        let line = format!(
            "sweep --provider daytona --label case={name} --apply --json \
             --retries 1 --retry-delay 100ms --retry-deadline 3s"
        );
        fixture.run(&line)
    };
    let stuck = fixture.cloud.plant("stuck", label("stuck"));
    fixture.cloud.arm(&json!({
        "at": "delete", "match": { "label": "case=stuck" }, "fault": "stuck_destroying"
    }));
    let output = sweep("stuck").expect_code(3);
    assert_eq!(stems(&results(&output, "accepted")), ["stuck"]);
    assert_eq!(fixture.cloud.state(&stuck), "destroying");

    fixture.cloud.plant("hidden", label("hidden"));
    fixture.cloud.arm(&json!({
        "at": "delete", "match": { "label": "case=hidden" }, "fault": "errored_deleted"
    }));
    let output = sweep("hidden").expect_code(3);
    assert_eq!(stems(&results(&output, "accepted")), ["hidden"], "a 404 is no proof");

    fixture.cloud.plant("broken", label("broken"));
    let good = fixture.cloud.plant("good", label("broken"));
    fixture.cloud.arm(&json!({
        "at": "delete", "match": { "name": "broken.*" }, "fault": "status", "status": 500
    }));
    let output = sweep("broken").expect_code(3);
    assert_eq!(stems(&results(&output, "failed")), ["broken"]);
    assert_eq!(fixture.cloud.state(&good), "404", "a failed release delays no other");
    assert!(output.stderr.contains("error[CR0040]: 1 not verified gone"), "{output}");
}

#[test]
fn a_sandbox_that_may_not_be_deleted_is_stopped_instead_and_reported() {
    let fixture = DaytonaCli::new();
    let decoys = SandboxDecoys::plant(&fixture.cloud);
    let running = fixture.in_state("job-a", "started");
    let resting = fixture.in_state("job-b", "stopped");
    fixture.cloud.permit(&["write:sandboxes"]);
    let output = fixture.run("sweep --provider daytona --name job-* --apply --json").expect_code(3);
    assert_eq!(stems(&results(&output, "failed")), ["job-a", "job-b"]);
    let why = |id: &str| {
        let name = fixture.cloud.sandbox(id)["name"].as_str().unwrap().to_owned();
        reason(&output, &name)
    };
    assert!(why(&running).starts_with("delete is denied; stopped instead"), "{output}");
    assert!(why(&resting).starts_with("delete is denied; it is stopped"), "{output}");
    assert!(matches!(fixture.cloud.state(&running).as_str(), "stopping" | "stopped"));
    let doctor = fixture.run("doctor").expect_code(7);
    assert!(doctor.stdout.contains("the key lacks delete:sandboxes"), "{doctor}");
    decoys.assert_untouched(&fixture.cloud);
    fixture.cloud.permit(&["write:sandboxes", "delete:sandboxes"]);
    fixture.run("sweep --provider daytona --name job-* --apply").expect_code(0);
    assert_eq!([fixture.cloud.state(&running), fixture.cloud.state(&resting)], ["404", "404"]);
}

#[test]
fn transient_faults_do_not_stop_a_sweep() {
    let fixture = DaytonaCli::new();
    for _ in 0..20 {
        fixture.cloud.plant("job", json!({ "state": "stopped" }));
    }
    for fault in [
        json!({ "at": "delete", "fault": "status", "status": 503, "count": 3 }),
        json!({ "at": "delete", "fault": "cut_after", "count": 3 }),
        json!({ "at": "list", "fault": "status", "status": 502, "count": 1 }),
        json!({ "at": "get", "fault": "half_body", "count": 2 }),
        json!({ "at": "delete", "fault": "status", "status": 429, "count": 1,
                "headers": { "Retry-After-sandbox-lifecycle": "1" } }),
    ] {
        fixture.cloud.arm(&fault);
    }
    let line = "sweep --provider daytona --preset stopped --apply --json --retry-delay 200ms";
    let output = fixture.run(line).expect_code(0);
    assert_eq!(output.json()["gone"], 20, "{output}");
    assert_eq!(fixture.cloud.there(), [""; 0]);
}

#[test]
fn reconcile_releases_the_resources_of_a_killed_process() {
    let fixture = DaytonaCli::new();
    let decoys = SandboxDecoys::plant(&fixture.cloud);
    let hold = Hold::start(&fixture.creel, "--sandbox --count 2 --no-watchdog");
    let ids: Vec<String> = hold.report["held"]
        .as_array()
        .unwrap()
        .iter()
        .map(|held| text(held, "id").to_owned())
        .collect();
    assert_eq!(fixture.listed("--owned").len(), 2);
    let json = fixture.run("ls --owned --json").expect_code(0).json();
    assert_eq!(text(&json["resources"][0]["owner"], "state"), "alive");

    // While its owner lives, it is not released by accident.
    let kept = fixture.run("reconcile --json").expect_code(0).json();
    assert_eq!((&kept["kept"], &kept["items"]), (&json!(2), &json!([])));
    fixture.run(&format!("rm {}", ids[0])).expect_code(4);
    let output = fixture.run("sweep --provider daytona --owned --apply --json").expect_code(0);
    assert_eq!(results(&output, "spared").len(), 2, "{output}");
    hold.kill();

    // Unreachable, it stays on record. Reachable, it is released, and the next round does nothing.
    let away = fixture.creel.clone().env("DAYTONA_API_URL", "http://127.0.0.1:9/api");
    let output = run(&away, "reconcile --json").expect_code(7);
    assert_eq!(text(&output.json()["unreachable"][0], "provider"), "daytona", "{output}");
    let output = fixture.run("reconcile --json").expect_code(0);
    assert_eq!(results(&output, "gone").len(), 2, "{output}");
    assert!(ids.iter().all(|id| fixture.cloud.state(id) == "404"));
    let again = fixture.run("reconcile --json").expect_code(0).json();
    assert_eq!((&again["examined"], &again["items"]), (&json!(0), &json!([])));
    decoys.assert_untouched(&fixture.cloud);
}

#[test]
fn a_failed_release_is_quarantined_and_retried_when_named() {
    let fixture = DaytonaCli::new();
    let hold = Hold::start(&fixture.creel, "--sandbox --no-watchdog");
    let (id, resource) = (hold.id("sandbox"), hold.resource("sandbox"));
    hold.kill();
    fixture.cloud.permit(&["write:sandboxes"]);
    let output = fixture.run("reconcile --json").expect_code(3);
    assert_eq!(results(&output, "quarantined").len(), 1, "{output}");
    assert!(matches!(fixture.cloud.state(&id).as_str(), "stopping" | "stopped"), "stopped instead");
    let shown = fixture.run(&format!("ledger show {resource}")).expect_code(0);
    assert!(shown.stdout.contains("delete is denied; stopped instead"), "{shown}");
    fixture.cloud.permit(&["write:sandboxes", "delete:sandboxes"]);
    fixture.run(&format!("rm {resource}")).expect_code(0);
    assert_eq!(fixture.cloud.state(&id), "404");
    fixture.run("reconcile").expect_code(0);
}

/// Returns the only unfinished delete that a command lists.
fn unfinished(output: &Output) -> Value {
    let json = output.json();
    let all = json["unfinished"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{output}");
    all[0].clone()
}

#[test]
fn a_sandbox_that_the_service_keeps_fails_once_and_stays_visible() {
    let fixture = DaytonaCli::new();
    let decoys = SandboxDecoys::plant(&fixture.cloud);
    let seed = json!({ "state": "error", "error_reason": "the runner is lost" });
    let id = fixture.cloud.plant("kept", seed);
    let sweep = "sweep --provider daytona --state error --apply --json";
    let first = fixture.run(sweep).expect_code(3);
    let item = first.json()["items"][0].clone();
    assert_eq!((text(&item, "result"), text(&item, "id")), ("accepted", id.as_str()));
    assert!(text(&item, "reason").starts_with("accepted, kept by the service until "), "{first}");
    assert!(text(&item, "reason").ends_with("the runner is lost"), "{first}");
    let until: jiff::Timestamp = text(&item, "kept_until").parse().unwrap();
    let hours = until.duration_since(jiff::Timestamp::now()).as_hours();
    assert!((7 * 24 - 2..=7 * 24).contains(&hours), "{until}");
    assert!(first.stderr.contains("error[CR0050]"), "{first}");

    // From now on it is listed, and does not change the exit code.
    let listed = fixture.run("ls --provider daytona --state error --json").expect_code(0);
    let row = &listed.json()["resources"][0];
    assert_eq!(
        (text(row, "id"), text(&row["kept"], "reason")),
        (id.as_str(), "the runner is lost")
    );
    assert_eq!(text(&unfinished(&listed), "id"), id);
    let table = fixture.run("ls --provider daytona").expect_code(0);
    assert!(table.stdout.contains("error (deleted, kept until "), "{table}");
    assert!(table.stderr.contains("1 deleted and not gone"), "{table}");
    let dry = fixture.run("sweep").expect_code(0);
    assert!(dry.stderr.contains("1 deleted and not gone"), "{dry}");
    let reconciled = fixture.run("reconcile --json").expect_code(0);
    assert_eq!(text(&unfinished(&reconciled), "id"), id);
    for again in [
        sweep,
        &format!("rm {id} --json"),
        "sweep --preset stopped --provider daytona --apply --json",
    ] {
        let output = fixture.run(again).expect_code(0);
        assert_eq!(results(&output, "accepted").len(), 1, "{output}");
    }
    assert!(fixture.cloud.names().iter().any(|name| name.starts_with("DESTROYED_kept")));
    decoys.assert_untouched(&fixture.cloud);
}

#[test]
fn a_foreign_kept_sandbox_can_be_named_and_swept() {
    let fixture = DaytonaCli::new();
    let id = fixture.in_state("kept", "error");
    let (status, _) = fixture.cloud.ask("DELETE", &format!("sandbox/{id}"), &Value::Null);
    assert_eq!((status, fixture.cloud.state(&id).as_str()), (200, "404"));
    assert_eq!(fixture.listed("").len(), 1, "hidden from everybody else, not from creel");
    let named = fixture.run(&format!("rm {id} --json")).expect_code(3);
    assert_eq!(results(&named, "accepted").len(), 1, "{named}");
    fixture.run(&format!("rm {id}")).expect_code(0);
}

#[test]
fn doctor_checks_the_address_of_the_toolboxes() {
    let fixture = DaytonaCli::new();
    let doctor = fixture.run("doctor").expect_code(0);
    let toolbox = fixture.cloud.url().replace("/api", "/toolbox");
    assert!(doctor.stdout.contains(&format!("its toolboxes answer at {toolbox}")), "{doctor}");
}

/// Starts a service whose toolboxes have another address. Returns its `DAYTONA_API_URL`.
fn service_with_toolboxes_at(toolbox: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/api", listener.local_addr().unwrap());
    let config = json!({ "proxyToolboxUrl": toolbox }).to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.unwrap());
            let mut first = String::new();
            client.read_line(&mut first).unwrap();
            let mut line = String::new();
            while client.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            let body = match first.split(' ').nth(1).unwrap() {
                "/api/config" => config.clone(),
                "/api/api-keys/current" => {
                    json!({"permissions": ["write:sandboxes", "delete:sandboxes"]}).to_string()
                }
                _ => json!({"items": [], "nextCursor": null}).to_string(),
            };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let response = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            // The client may be gone.
            let _ = client.get_mut().write_all(response.as_bytes());
        }
    });
    url
}

#[test]
fn doctor_reports_toolboxes_that_accept_a_connection_and_never_respond() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let toolbox = format!("http://{}", silent.local_addr().unwrap());
    let (sender, connections) = mpsc::channel();
    thread::spawn(move || silent.incoming().for_each(|client| drop(sender.send(client))));
    let home = tempfile::tempdir().unwrap();
    let creel = Creel::without_docker(BINARY, home.path())
        .env("DAYTONA_API_URL", service_with_toolboxes_at(&format!("{toolbox}/toolbox")))
        .env("DAYTONA_API_KEY", "dtn_for_a_test");
    let doctor = creel.run(["doctor", "--json"]).expect_code(7);
    assert!(connections.try_recv().is_ok(), "no request was sent: {doctor}");
    assert!(doctor.took < Duration::from_secs(20), "{:?}", doctor.took);
    let json = doctor.json();
    let checks = json["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "daytona").unwrap();
    assert_eq!(check["status"], "problem", "{doctor}");
    let detail = text(check, "detail");
    let expected = format!("its toolboxes cannot be reached: {toolbox} did not answer in time");
    assert!(detail.contains(&expected), "{doctor}");
    assert!(text(check, "hint").contains("let this machine reach that address"), "{doctor}");
}
