//! `--provider daytona`: list, sweep, apply, stop and rm against a local server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use creel_testkit::creel::{Creel, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::bench::{BINARY, Hold, read_json, reason, results, run, text};
use super::cloud::{Cloud, stem};

/// A day and a bit, in seconds.
const OLD: u64 = 25 * 3600;

/// Every state that Daytona has and a listing can show.
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

/// A cloud, and a binary that knows no other world but it and this machine's processes.
struct Desk {
    cloud: Cloud,
    creel: Creel,
    home: TempDir,
}

impl Desk {
    fn new() -> Self {
        let (cloud, home) = (Cloud::start(), tempfile::tempdir().unwrap());
        let creel = cloud.given_to(Creel::without_docker(BINARY, home.path()));
        Self { cloud, creel, home }
    }

    #[track_caller]
    fn run(&self, line: &str) -> Output {
        run(&self.creel, line)
    }

    /// Makes a sandbox in a state.
    fn in_state(&self, name: &str, state: &str) -> String {
        self.cloud.plant(name, json!({ "state": state }))
    }

    /// Returns what a dry run would release, without the numbers of names, sorted.
    #[track_caller]
    fn planned(&self, flags: &str) -> Vec<String> {
        let output = self.run(&format!("sweep --provider daytona --json {flags}")).expect_code(0);
        stems(&results(&output, "planned"))
    }

    /// Returns what a list shows, like [`Desk::planned`].
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

/// Sandboxes that resemble those a test means, and must not change.
struct Decoys(Vec<(String, Value)>);

impl Decoys {
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
    let desk = Desk::new();
    let seed = json!({
        "state": "stopped", "age_seconds": 3 * 86_400, "idle_seconds": OLD,
        "labels": { "job": "nightly" }
    });
    let id = desk.cloud.plant("box", seed);
    let output = desk.run("ls --provider daytona --json").expect_code(0);
    let json = output.json();
    let row = &json["resources"][0];
    let told = ["provider", "kind", "id", "state"].map(|key| text(row, key));
    assert_eq!(told, ["daytona", "sandbox", id.as_str(), "stopped"]);
    assert_eq!((&row["labels"], &row["owner"]), (&json!({ "job": "nightly" }), &Value::Null));
    assert!(text(row, "created_at") < text(row, "last_active_at"), "{output}");
    assert_eq!(json["resources"].as_array().unwrap().len(), 1);
    let table = desk.run("ls").expect_code(0).stdout;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["sandbox", &id, text(&json["resources"][0], "name"), "stopped", "3d"]);
}

#[test]
fn every_state_can_be_listed_and_swept_by() {
    let desk = Desk::new();
    for state in STATES {
        desk.in_state(state, state);
    }
    for state in STATES {
        assert_eq!(desk.listed(&format!("--state {state}")), [state]);
        assert_eq!(desk.planned(&format!("--state {state}")), [state]);
    }
    assert_eq!(desk.planned("--state stopped --state error"), ["error", "stopped"]);
    assert_eq!(desk.listed("--state running"), [""; 0], "a word of containers");
    let typo = desk.run("ls --provider daytona --state stoped").expect_code(2);
    assert!(typo.stderr.contains("did you mean `stopped`?"), "{typo}");
}

#[test]
fn age_counts_from_the_creation_and_idleness_from_the_last_activity() {
    let desk = Desk::new();
    let plant = |name: &str, age: u64, idle: u64| {
        desk.cloud.plant(name, json!({ "age_seconds": age, "idle_seconds": idle }));
    };
    plant("new", 60, 60);
    plant("old-busy", OLD, 60);
    plant("old-idle", OLD, OLD);
    plant("older", 3 * OLD, 3 * OLD);
    assert_eq!(desk.planned("--older-than 1d"), ["old-busy", "old-idle", "older"]);
    assert_eq!(desk.planned("--idle-for 1d"), ["old-idle", "older"]);
    assert_eq!(desk.planned("--older-than 1d --idle-for 2d"), ["older"]);
    assert_eq!(desk.listed("--idle-for 1d"), ["old-idle", "older"]);
    assert_eq!(desk.planned("--older-than 4d"), [""; 0]);
    let output = desk.run("sweep --provider daytona --idle-for 1d --apply --json").expect_code(0);
    assert_eq!(stems(&results(&output, "gone")), ["old-idle", "older"]);
    assert_eq!(desk.cloud.there(), ["new", "old-busy"]);
}

#[test]
fn labels_and_names_mean_whole_ones_and_look_alikes_survive() {
    let desk = Desk::new();
    let decoys = Decoys::plant(&desk.cloud);
    let nightly = json!({ "labels": { "job": "nightly", "team": "a" } });
    desk.cloud.plant("job", nightly.clone());
    desk.cloud.plant("job", json!({ "labels": { "job": "nightly" } }));
    assert_eq!(desk.planned("--label job=nightly"), ["job", "job"]);
    assert_eq!(desk.planned("--label job=nightly --label team"), ["job"]);
    assert_eq!(desk.planned("--label job"), ["DESTROYED_job", "job", "job", "my-job"]);
    assert_eq!(desk.planned("--name job.*"), ["job", "job"]);
    assert_eq!(desk.planned("--name job"), [""; 0]);

    // A look changes nothing, and sends nothing that could.
    desk.cloud.requests("");
    desk.planned("--label job=nightly");
    assert_eq!(desk.cloud.requests("DELETE /sandbox/{s}"), 0);

    let line = "sweep --provider daytona --label job=nightly --apply --json";
    let output = desk.run(line).expect_code(0);
    assert_eq!(stems(&results(&output, "gone")), ["job", "job"]);
    assert_eq!(desk.cloud.requests("DELETE /sandbox/{s}"), 2, "one order for each");
    decoys.assert_untouched(&desk.cloud);
    let again = desk.run(line).expect_code(0);
    assert_eq!(again.json()["planned"], 0);
}

#[test]
fn presets_mean_what_the_help_and_the_page_say() {
    let desk = Desk::new();
    for state in STATES {
        desk.in_state(&format!("new-{state}"), state);
        // One that is idle is stopped by the cloud itself.
        let old = json!({ "state": state, "age_seconds": OLD, "idle_seconds": 0 });
        desk.cloud.plant(&format!("old-{state}"), old);
    }
    let stopped = [
        "new-build_failed",
        "new-error",
        "new-stopped",
        "old-build_failed",
        "old-error",
        "old-stopped",
    ];
    assert_eq!(desk.planned("--preset stopped"), stopped);
    let mut default = stopped.map(str::to_owned).to_vec();
    default.push("old-archived".to_owned());
    default.sort();
    assert_eq!(desk.planned("--preset default"), default);
    let mut aggressive: Vec<String> = STATES.iter().map(|state| format!("old-{state}")).collect();
    aggressive.extend(["archived", "build_failed", "error", "stopped"].map(|s| format!("new-{s}")));
    aggressive.sort();
    assert_eq!(desk.planned("--preset aggressive"), aggressive);
    // Other flags narrow a preset further.
    assert_eq!(desk.planned("--preset stopped --name old-*"), stopped[3..]);
    assert_eq!(desk.planned("--preset aggressive --idle-for 2d"), [""; 0]);
}

#[test]
fn a_kept_plan_releases_exactly_what_it_names_and_spares_what_changed() {
    let desk = Desk::new();
    let decoys = Decoys::plant(&desk.cloud);
    let labels = json!({ "job": "nightly" });
    let kept = desk.cloud.plant("job-a", json!({ "labels": labels, "state": "stopped" }));
    let woken = desk.cloud.plant("job-b", json!({ "labels": labels, "state": "stopped" }));
    let plan = desk.path("plan.json");
    let line = format!("sweep --provider daytona --label job=nightly --plan-out {plan}");
    desk.run(&line).expect_code(0);
    assert_eq!(desk.cloud.state(&kept), "stopped");
    desk.cloud.ask("POST", &format!("sandbox/{woken}/start"), &Value::Null);
    desk.cloud.plant("job-later", json!({ "labels": labels }));

    let output = desk.run(&format!("apply {plan} --json")).expect_code(4);
    assert_eq!(stems(&results(&output, "gone")), ["job-a"]);
    assert_eq!(stems(&results(&output, "drifted")), ["job-b"]);
    assert_eq!(desk.cloud.state(&woken), "started");
    assert_eq!(desk.cloud.there().iter().filter(|name| name.starts_with("job-")).count(), 2);
    decoys.assert_untouched(&desk.cloud);
    // The plan is for this cloud and no other.
    let other = Desk::new();
    let refused = other.run(&format!("apply {plan}")).expect_code(4);
    assert!(refused.stderr.starts_with("error[CR0035]"), "{refused}");
    let worlds = read_json(desk.home.path().join("plan.json").as_path());
    assert_eq!(worlds["worlds"].as_array().unwrap().len(), 1, "{worlds}");
    assert!(!worlds.to_string().contains(desk.cloud.key()), "a plan holds no secret");
}

#[test]
fn what_is_named_is_stopped_or_released() {
    let desk = Desk::new();
    let decoys = Decoys::plant(&desk.cloud);
    let first = desk.in_state("job", "started");
    let second = desk.in_state("job", "started");
    let output = desk.run(&format!("stop {first} --provider daytona --json")).expect_code(0);
    assert_eq!((&output.json()["stopped"], &output.json()["failed"]), (&json!(1), &json!(0)));
    assert_eq!(desk.cloud.state(&first), "stopped");
    assert_eq!(desk.cloud.state(&second), "started");
    desk.run(&format!("stop {first} --provider daytona")).expect_code(0);

    // By the start of its id, by kind and name, by its whole name.
    desk.run(&format!("rm {}", &first[..13])).expect_code(0);
    let name = desk.cloud.sandbox(&second)["name"].as_str().unwrap().to_owned();
    desk.run(&format!("rm sandbox/{name} --provider daytona")).expect_code(0);
    assert_eq!([desk.cloud.state(&first), desk.cloud.state(&second)], ["404", "404"]);
    let output = desk.run(&format!("rm {name}")).expect_code(2);
    assert!(output.stderr.starts_with("error[CR0037]"), "{output}");
    decoys.assert_untouched(&desk.cloud);

    let protected = desk.cloud.plant("db", json!({ "labels": { "dev.creel.protect": "" } }));
    desk.run(&format!("rm {protected}")).expect_code(4);
    let output = desk.run("sweep --provider daytona --name db.* --apply --json").expect_code(0);
    assert_eq!(stems(&results(&output, "spared")), ["db"]);
    assert_eq!(desk.cloud.state(&protected), "started");
}

#[test]
fn a_stop_that_is_refused_is_told() {
    let desk = Desk::new();
    let id = desk.in_state("job", "started");
    desk.cloud.arm(&json!({ "at": "stop", "fault": "status", "status": 403 }));
    let output = desk.run(&format!("stop {id} --json")).expect_code(3);
    assert_eq!(output.json()["failed"], 1);
    desk.cloud.heal();
    desk.cloud.arm(&json!({ "at": "stop", "fault": "cut_before", "count": 1 }));
    desk.run(&format!("stop {id}")).expect_code(0);
    assert_eq!(desk.cloud.state(&id), "stopped");
}

#[test]
fn caps_and_confirmation_hold_for_sandboxes_too() {
    let desk = Desk::new();
    for _ in 0..3 {
        desk.in_state("job", "stopped");
    }
    desk.run("sweep --provider daytona --apply --kind sandbox").expect_code(4);
    desk.run("sweep --provider daytona --preset stopped --apply --max 2").expect_code(4);
    desk.run("sweep --provider daytona --all --apply").expect_code(4);
    assert_eq!(desk.cloud.there().len(), 3);
    let output = desk.run("sweep --provider daytona --all --apply --yes --json").expect_code(0);
    assert_eq!(output.json()["gone"], 3);
}

#[test]
fn a_key_that_is_missing_or_refused_is_told_with_its_variable() {
    let desk = Desk::new();
    let id = desk.in_state("job", "stopped");
    let keyless = desk.creel.clone().env_remove("DAYTONA_API_KEY");
    for line in ["ls", "sweep --preset stopped --apply", "rm x", "stop x"] {
        let output = run(&keyless, &format!("{line} --provider daytona")).expect_code(7);
        assert!(output.stderr.starts_with("error[CR0022]"), "{output}");
        assert!(output.stderr.contains("DAYTONA_API_KEY is not set"), "{output}");
        assert!(output.stderr.contains("hint: set DAYTONA_API_KEY"), "{output}");
    }
    // Without being asked for by name it is noted and left out.
    run(&keyless, "ls").expect_code(0);

    let wrong = desk.creel.clone().env("DAYTONA_API_KEY", "dtn_nobody-has-this");
    for line in ["ls", "sweep --preset stopped --apply", "rm x", "reconcile"] {
        desk.cloud.requests("");
        let output = run(&wrong, line).expect_code(7);
        assert!(output.stderr.contains("check DAYTONA_API_KEY"), "{output}");
        assert!(!output.stderr.contains("nobody-has-this"), "{output}");
        assert!(desk.cloud.requests("GET /sandbox") <= 1, "a refused key is not tried again");
    }
    let lone = desk.creel.clone().env_remove("DAYTONA_API_KEY").env("DAYTONA_JWT_TOKEN", "a.b.c");
    let output = run(&lone, "ls").expect_code(2);
    assert!(output.stderr.contains("DAYTONA_ORGANIZATION_ID"), "{output}");
    assert_eq!(desk.cloud.state(&id), "stopped");
}

#[test]
fn an_address_that_is_wrong_is_told_with_its_variable() {
    let desk = Desk::new();
    let at = |url: &str| desk.creel.clone().env("DAYTONA_API_URL", url);
    let free = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let base = desk.cloud.url().trim_end_matches("/api").to_owned();
    for (url, exit) in [
        ("app.daytona.io/api".to_owned(), 2),
        ("ftp://127.0.0.1/api".to_owned(), 2),
        (format!("http://{free}/api"), 7),
        (format!("https://{}", base.trim_start_matches("http://")), 7),
        ("http://daytona.invalid/api".to_owned(), 7),
        // Where a server answers, but not with this API.
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
        desk.cloud.arm(&json!({ "at": "list", "fault": "html" }));
        let output = desk.run(line).expect_code(7);
        let told = format!("{}{}", output.stdout, output.stderr);
        assert!(told.contains("captive portal") && told.contains("DAYTONA_API_URL"), "{output}");
        desk.cloud.heal();
    }
}

#[test]
fn what_is_not_gone_is_told_apart_and_ends_with_three() {
    let desk = Desk::new();
    let label = |name: &str| json!({ "labels": { "case": name } });
    let sweep = |name: &str| {
        let line = format!(
            "sweep --provider daytona --label case={name} --apply --json \
             --retries 1 --retry-delay 100ms --retry-deadline 3s"
        );
        desk.run(&line)
    };
    let stuck = desk.cloud.plant("stuck", label("stuck"));
    desk.cloud.arm(&json!({
        "at": "delete", "match": { "label": "case=stuck" }, "fault": "stuck_destroying"
    }));
    let output = sweep("stuck").expect_code(3);
    assert_eq!(stems(&results(&output, "accepted")), ["stuck"]);
    assert_eq!(desk.cloud.state(&stuck), "destroying");

    desk.cloud.plant("hidden", label("hidden"));
    desk.cloud.arm(&json!({
        "at": "delete", "match": { "label": "case=hidden" }, "fault": "errored_deleted"
    }));
    let output = sweep("hidden").expect_code(3);
    assert_eq!(stems(&results(&output, "accepted")), ["hidden"], "a 404 is no proof");

    desk.cloud.plant("broken", label("broken"));
    let good = desk.cloud.plant("good", label("broken"));
    desk.cloud.arm(&json!({
        "at": "delete", "match": { "name": "broken.*" }, "fault": "status", "status": 500
    }));
    let output = sweep("broken").expect_code(3);
    assert_eq!(stems(&results(&output, "failed")), ["broken"]);
    assert_eq!(desk.cloud.state(&good), "404", "one that will not go delays no other");
    assert!(output.stderr.contains("error[CR0040]: 1 not verified gone"), "{output}");
}

#[test]
fn what_may_not_be_deleted_is_stopped_instead_and_said_so() {
    let desk = Desk::new();
    let decoys = Decoys::plant(&desk.cloud);
    let running = desk.in_state("job-a", "started");
    let resting = desk.in_state("job-b", "stopped");
    desk.cloud.permit(&["write:sandboxes"]);
    let output = desk.run("sweep --provider daytona --name job-* --apply --json").expect_code(3);
    assert_eq!(stems(&results(&output, "failed")), ["job-a", "job-b"]);
    let why = |id: &str| {
        let name = desk.cloud.sandbox(id)["name"].as_str().unwrap().to_owned();
        reason(&output, &name)
    };
    assert!(why(&running).starts_with("delete is denied; stopped instead"), "{output}");
    assert!(why(&resting).starts_with("delete is denied; it is stopped"), "{output}");
    assert!(matches!(desk.cloud.state(&running).as_str(), "stopping" | "stopped"));
    let doctor = desk.run("doctor").expect_code(7);
    assert!(doctor.stdout.contains("the key lacks delete:sandboxes"), "{doctor}");
    decoys.assert_untouched(&desk.cloud);
    desk.cloud.permit(&["write:sandboxes", "delete:sandboxes"]);
    desk.run("sweep --provider daytona --name job-* --apply").expect_code(0);
    assert_eq!([desk.cloud.state(&running), desk.cloud.state(&resting)], ["404", "404"]);
}

#[test]
fn faults_that_pass_do_not_stop_a_sweep() {
    let desk = Desk::new();
    for _ in 0..20 {
        desk.cloud.plant("job", json!({ "state": "stopped" }));
    }
    for fault in [
        json!({ "at": "delete", "fault": "status", "status": 503, "count": 3 }),
        json!({ "at": "delete", "fault": "cut_after", "count": 3 }),
        json!({ "at": "list", "fault": "status", "status": 502, "count": 1 }),
        json!({ "at": "get", "fault": "half_body", "count": 2 }),
        json!({ "at": "delete", "fault": "status", "status": 429, "count": 1,
                "headers": { "Retry-After-sandbox-lifecycle": "1" } }),
    ] {
        desk.cloud.arm(&fault);
    }
    let line = "sweep --provider daytona --preset stopped --apply --json --retry-delay 200ms";
    let output = desk.run(line).expect_code(0);
    assert_eq!(output.json()["gone"], 20, "{output}");
    assert_eq!(desk.cloud.there(), [""; 0]);
}

#[test]
fn reconcile_gives_back_what_a_killed_process_held() {
    let desk = Desk::new();
    let decoys = Decoys::plant(&desk.cloud);
    let hold = Hold::start(&desk.creel, "--sandbox --count 2 --no-watchdog");
    let ids: Vec<String> = hold.answer["held"]
        .as_array()
        .unwrap()
        .iter()
        .map(|held| text(held, "id").to_owned())
        .collect();
    assert_eq!(desk.listed("--owned").len(), 2);
    let json = desk.run("ls --owned --json").expect_code(0).json();
    assert_eq!(text(&json["resources"][0]["owner"], "state"), "alive");

    // While its owner lives, nobody takes it away by accident.
    let kept = desk.run("reconcile --json").expect_code(0).json();
    assert_eq!((&kept["kept"], &kept["items"]), (&json!(2), &json!([])));
    desk.run(&format!("rm {}", ids[0])).expect_code(4);
    let output = desk.run("sweep --provider daytona --owned --apply --json").expect_code(0);
    assert_eq!(results(&output, "spared").len(), 2, "{output}");
    hold.kill();

    // Out of reach it stays on record; in reach it goes, and a second time there is nothing to do.
    let away = desk.creel.clone().env("DAYTONA_API_URL", "http://127.0.0.1:9/api");
    let output = run(&away, "reconcile --json").expect_code(7);
    assert_eq!(text(&output.json()["unreachable"][0], "provider"), "daytona", "{output}");
    let output = desk.run("reconcile --json").expect_code(0);
    assert_eq!(results(&output, "gone").len(), 2, "{output}");
    assert!(ids.iter().all(|id| desk.cloud.state(id) == "404"));
    let again = desk.run("reconcile --json").expect_code(0).json();
    assert_eq!((&again["examined"], &again["items"]), (&json!(0), &json!([])));
    decoys.assert_untouched(&desk.cloud);
}

#[test]
fn what_cannot_be_given_back_is_quarantined_and_tried_again_when_named() {
    let desk = Desk::new();
    let hold = Hold::start(&desk.creel, "--sandbox --no-watchdog");
    let (id, resource) = (hold.id("sandbox"), hold.resource("sandbox"));
    hold.kill();
    desk.cloud.permit(&["write:sandboxes"]);
    let output = desk.run("reconcile --json").expect_code(3);
    assert_eq!(results(&output, "quarantined").len(), 1, "{output}");
    assert!(matches!(desk.cloud.state(&id).as_str(), "stopping" | "stopped"), "stopped instead");
    let shown = desk.run(&format!("ledger show {resource}")).expect_code(0);
    assert!(shown.stdout.contains("delete is denied; stopped instead"), "{shown}");
    desk.cloud.permit(&["write:sandboxes", "delete:sandboxes"]);
    desk.run(&format!("rm {resource}")).expect_code(0);
    assert_eq!(desk.cloud.state(&id), "404");
    desk.run("reconcile").expect_code(0);
}

/// Returns the one unfinished delete that a command lists.
fn unfinished(output: &Output) -> Value {
    let json = output.json();
    let all = json["unfinished"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{output}");
    all[0].clone()
}

#[test]
fn one_that_the_service_keeps_is_a_failure_once_and_stays_visible() {
    let desk = Desk::new();
    let decoys = Decoys::plant(&desk.cloud);
    let seed = json!({ "state": "error", "error_reason": "the runner is lost" });
    let id = desk.cloud.plant("kept", seed);
    let sweep = "sweep --provider daytona --state error --apply --json";
    let first = desk.run(sweep).expect_code(3);
    let item = first.json()["items"][0].clone();
    assert_eq!((text(&item, "result"), text(&item, "id")), ("accepted", id.as_str()));
    assert!(text(&item, "reason").starts_with("accepted, kept by the service until "), "{first}");
    assert!(text(&item, "reason").ends_with("the runner is lost"), "{first}");
    let until: jiff::Timestamp = text(&item, "kept_until").parse().unwrap();
    let hours = until.duration_since(jiff::Timestamp::now()).as_hours();
    assert!((7 * 24 - 2..=7 * 24).contains(&hours), "{until}");
    assert!(first.stderr.contains("error[CR0050]"), "{first}");

    // From now on it is listed, and does not change the exit code.
    let listed = desk.run("ls --provider daytona --state error --json").expect_code(0);
    let row = &listed.json()["resources"][0];
    assert_eq!(
        (text(row, "id"), text(&row["kept"], "reason")),
        (id.as_str(), "the runner is lost")
    );
    assert_eq!(text(&unfinished(&listed), "id"), id);
    let table = desk.run("ls --provider daytona").expect_code(0);
    assert!(table.stdout.contains("error (deleted, kept until "), "{table}");
    assert!(table.stderr.contains("1 deleted and not gone"), "{table}");
    let dry = desk.run("sweep").expect_code(0);
    assert!(dry.stderr.contains("1 deleted and not gone"), "{dry}");
    let reconciled = desk.run("reconcile --json").expect_code(0);
    assert_eq!(text(&unfinished(&reconciled), "id"), id);
    for again in [
        sweep,
        &format!("rm {id} --json"),
        "sweep --preset stopped --provider daytona --apply --json",
    ] {
        let output = desk.run(again).expect_code(0);
        assert_eq!(results(&output, "accepted").len(), 1, "{output}");
    }
    assert!(desk.cloud.names().iter().any(|name| name.starts_with("DESTROYED_kept")));
    decoys.assert_untouched(&desk.cloud);
}

#[test]
fn a_kept_one_of_somebody_elses_can_be_named_and_swept() {
    let desk = Desk::new();
    let id = desk.in_state("kept", "error");
    let (status, _) = desk.cloud.ask("DELETE", &format!("sandbox/{id}"), &Value::Null);
    assert_eq!((status, desk.cloud.state(&id).as_str()), (200, "404"));
    assert_eq!(desk.listed("").len(), 1, "hidden from everybody else, not from creel");
    let named = desk.run(&format!("rm {id} --json")).expect_code(3);
    assert_eq!(results(&named, "accepted").len(), 1, "{named}");
    desk.run(&format!("rm {id}")).expect_code(0);
}

#[test]
fn doctor_checks_where_the_toolboxes_are() {
    let desk = Desk::new();
    let doctor = desk.run("doctor").expect_code(0);
    let toolbox = desk.cloud.url().replace("/api", "/toolbox");
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
