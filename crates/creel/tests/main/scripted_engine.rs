//! States that a real engine does not keep, from an engine that follows a script.

use creel_testkit::creel::Output;
use creel_testkit::fake_engine::{
    FakeEngine, Reply, container_detail, container_id, container_row,
};
use serde_json::{Value, json};

use crate::support::Home;

/// An engine with containers whose responses are scripted.
struct Script {
    engine: FakeEngine,
    rows: Vec<Value>,
}

impl Script {
    fn new() -> Self {
        Self { engine: FakeEngine::start().unwrap(), rows: Vec::new() }
    }

    /// Adds a container that is observed this many times before it is absent.
    fn container(mut self, state: &str, deletes: Vec<Reply>, seen: Option<usize>) -> Self {
        let number = self.rows.len();
        self.rows.push(container_row(number, state));
        self.engine.list_containers(self.rows.clone());
        let path = format!("/containers/{}", container_id(number));
        let there = Reply::Json(200, container_detail(number, state));
        let gone = Reply::error(404, &format!("No such container: {}", container_id(number)));
        let mut inspections = vec![there; seen.unwrap_or(1)];
        inspections.extend(seen.map(|_| gone));
        self.engine.route("GET", &format!("{path}/json"), inspections);
        self.engine.route("DELETE", &format!(r"{path}(\?|$)"), deletes);
        self
    }

    /// Adds a container that is removed normally.
    fn ordinary(self) -> Self {
        self.container("exited", vec![Reply::Empty(204)], Some(1))
    }

    fn sweep(&self) -> Output {
        let home = Home::on(&self.engine.engine());
        let sweep = ["sweep", "--label", "dev.example.suite=fake", "--apply", "--json"];
        let retry = ["--retry-delay", "50ms", "--retry-deadline", "3s"];
        home.creel.run([&sweep[..], &retry].concat())
    }

    /// Returns the index of the last request of this kind among all requests.
    fn last(&self, method: &str, number: usize) -> usize {
        let fits = |request: &String| {
            request.starts_with(method) && request.contains(&container_id(number))
        };
        self.engine.requests().iter().rposition(fits).unwrap()
    }
}

/// Returns the result and the number of attempts for a container.
fn item(output: &Output, number: usize) -> (String, u64, String) {
    let report = output.json();
    let items = report["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["id"] == container_id(number).as_str()).unwrap();
    let reason = item["reason"].as_str().unwrap_or_default().to_owned();
    (item["result"].as_str().unwrap().to_owned(), item["tries"].as_u64().unwrap(), reason)
}

fn in_progress() -> Reply {
    Reply::error(409, "removal of container 0000 is already in progress")
}

#[test]
fn a_container_stuck_in_removing_is_accepted_and_delays_no_other() {
    let script =
        Script::new().container("removing", vec![in_progress()], None).ordinary().ordinary();
    let swept = script.sweep().expect_code(3);
    assert_eq!(item(&swept, 0).0, "accepted", "{swept}");
    assert_eq!((item(&swept, 1).0, item(&swept, 2).0), ("gone".into(), "gone".into()), "{swept}");
    let others = script.last("GET", 1).max(script.last("GET", 2));
    assert!(others < script.last("GET", 0), "the others waited for it\n{swept}");
}

#[test]
fn a_dead_container_is_removed() {
    let script = Script::new().container("dead", vec![Reply::Empty(204)], Some(1));
    let swept = script.sweep().expect_code(0);
    assert_eq!(item(&swept, 0).0, "gone", "{swept}");
}

#[test]
fn a_removal_finished_by_another_client_counts_as_gone() {
    let script = Script::new().container("running", vec![in_progress()], Some(4));
    let swept = script.sweep().expect_code(0);
    assert_eq!(item(&swept, 0).0, "gone", "{swept}");
}

#[test]
fn a_request_to_a_busy_engine_is_retried_until_it_succeeds() {
    let busy =
        Reply::error(500, "driver failed to remove root filesystem: device or resource busy");
    let deletes = vec![busy.clone(), busy, Reply::Empty(204)];
    let script = Script::new().container("exited", deletes, Some(1));
    let swept = script.sweep().expect_code(0);
    assert_eq!((item(&swept, 0).0, item(&swept, 0).1), ("gone".into(), 3), "{swept}");
}

#[test]
fn a_request_to_a_permanently_busy_engine_fails_after_the_retries() {
    let busy =
        Reply::error(500, "driver failed to remove root filesystem: device or resource busy");
    let script = Script::new().container("exited", vec![busy], None).ordinary();
    let swept = script.sweep().expect_code(3);
    let (result, tries, reason) = item(&swept, 0);
    assert_eq!((result.as_str(), tries), ("failed", 4), "{swept}");
    assert!(reason.contains("resource busy"), "{swept}");
    assert_eq!(item(&swept, 1).0, "gone", "{swept}");
}

#[test]
fn a_refusal_is_not_retried_and_its_reason_is_reported() {
    let refusal = Reply::error(403, "authorization denied by plugin guard");
    let script = Script::new().container("exited", vec![refusal], None).ordinary();
    let swept = script.sweep().expect_code(3);
    let (result, tries, reason) = item(&swept, 0);
    assert_eq!((result.as_str(), tries), ("failed", 1), "{swept}");
    assert!(reason.contains("authorization denied by plugin"), "{swept}");
    assert_eq!(item(&swept, 1).0, "gone", "{swept}");
}

#[test]
fn a_volume_in_use_fails_with_its_reason() {
    let engine = FakeEngine::start().unwrap();
    let volume = json!({
        "Name": "used", "Driver": "local", "Scope": "local", "Mountpoint": "/nowhere",
        "CreatedAt": "2023-11-14T22:13:20Z", "Labels": { "dev.example.suite": "fake" },
    });
    let volumes = json!({ "Volumes": [volume], "Warnings": null });
    engine.route("GET", r"/volumes(\?|$)", [Reply::Json(200, volumes)]);
    engine.route("GET", "/volumes/used$", [Reply::Json(200, volume)]);
    let refusal = Reply::error(409, "remove used: volume is in use - [0123456789ab]");
    engine.route("DELETE", "/volumes/used", [refusal]);
    let script = Script { engine, rows: Vec::new() };
    let swept = script.sweep().expect_code(3);
    let item = &swept.json()["items"][0];
    assert_eq!((&item["result"], &item["tries"]), (&json!("failed"), &json!(1)), "{swept}");
    assert!(item["reason"].as_str().unwrap().contains("volume is in use"), "{swept}");
}

#[test]
fn an_unknown_state_does_not_break_the_list() {
    let script = Script::new().container("hibernating", vec![Reply::Empty(204)], Some(1));
    let home = Home::on(&script.engine.engine());
    let listed = home.creel.run(["ls", "--provider", "docker", "--json"]).expect_code(0).json();
    assert_eq!(listed["resources"][0]["state"], "hibernating", "{listed}");
    script.sweep().expect_code(0);
}

/// The list before the sweep has a bystander. The one after it fails, or is not a list.
#[test]
fn a_certificate_does_not_report_unlisted_objects_as_vanished() {
    for broken in [Reply::error(500, "the store is locked"), Reply::Json(200, json!("busy"))] {
        let script = Script::new().ordinary();
        let bystander = json!([{ "Id": "b".repeat(64), "Name": "bystander", "Driver": "bridge" }]);
        script.engine.route("GET", r"/networks(\?|$)", [Reply::Json(200, bystander), broken]);
        let home = Home::on(&script.engine.engine());
        let proof = home.path("proof.json").display().to_string();
        let sweep = ["sweep", "--label", "dev.example.suite=fake", "--apply"];
        let output = home.creel.run([&sweep[..], &["--certificate", &proof]].concat());
        let text = std::fs::read_to_string(&proof).unwrap_or_default();
        let proof: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output}"));
        assert_eq!(proof["verdict"], "inventory unread", "{proof:#}");
        assert_eq!(proof["difference"]["vanished"], json!([]), "{proof:#}");
        assert_eq!(proof["unread"][0]["provider"], "docker", "{proof:#}");
        output.expect_code(7);
    }
}
