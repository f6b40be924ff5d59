//! Images: a missing one is pulled, and an unavailable one is named.

use creel_testkit::registry::Registry;
use serde_json::Value;

use crate::support::unique;

use super::run_fixture::{RunFixture, agent};

/// An engine with a registry, and an image there that the engine does not have yet.
struct PullFixture {
    runs: RunFixture,
    registry: Registry,
    image: String,
}

impl PullFixture {
    fn set() -> Self {
        let runs = RunFixture::set(creel_docker::NAME);
        let registry = Registry::start_beside(runs.engine.as_ref().unwrap()).unwrap();
        let image = registry.reference(&unique("tag"));
        Self { runs, registry, image }.with_the_image()
    }

    fn with_the_image(mut self) -> Self {
        self.runs.sandbox = format!("image = \"{}\"\nnetwork = \"none\"\n", self.image);
        self
    }

    fn run(&self, code: i32) -> Value {
        self.runs.run(code, &agent("echo ran"))
    }

    /// Removes the pulled image, and asserts that nothing else is left.
    fn end(self) {
        let docker = self.runs.engine.as_ref().unwrap().docker();
        docker.cli(&["rmi", &self.image]).unwrap();
        self.runs.assert_nothing_left();
    }
}

/// Returns the step that pulls an image, if there was one.
fn fetching(report: &Value) -> Option<&Value> {
    report["checklist"].as_array().unwrap().iter().find(|step| step["step"] == "image")
}

#[test]
fn a_missing_image_is_pulled_once_and_stays_for_the_next_run() {
    let fixture = PullFixture::set();
    let report = fixture.run(0);
    let step = fetching(&report).expect("it was not there");
    assert_eq!((&step["status"], &step["found"]), (&"passed".into(), &"it was pulled".into()));
    let again = fixture.run(0);
    assert!(fetching(&again).is_none(), "{again:#}");
    assert_eq!(fixture.registry.fetched(), 1);
    fixture.end();
}

#[test]
fn a_pull_is_retried_when_the_registry_fails() {
    let fixture = PullFixture::set();
    fixture.registry.fail_next(503, 2);
    let report = fixture.run(0);
    let step = fetching(&report).unwrap();
    assert!(step["tries"].as_u64().unwrap() > 1, "{step}");
    fixture.end();
}

#[test]
fn an_image_that_no_registry_has_is_named_and_not_requested_again() {
    let mut fixture = PullFixture::set();
    fixture.image = fixture.image.replace("creel-test-pulled", "creel-no-such-image");
    let fixture = fixture.with_the_image();
    let report = fixture.run(5);
    let cause = &report["cause"];
    assert_eq!((&cause["class"], &cause["step"]), (&"provision_failed".into(), &"image".into()));
    assert!(cause["message"].as_str().unwrap().contains("creel-no-such-image"), "{cause}");
    assert_eq!(fetching(&report).unwrap()["tries"], 1, "{report:#}");
    fixture.runs.assert_nothing_left();
}
