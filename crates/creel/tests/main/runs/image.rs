//! Images: one that the engine does not have is pulled; one that cannot be had is named.

use creel_model::provider::ProviderName;
use creel_testkit::registry::Registry;
use serde_json::Value;

use crate::support::unique;

use super::stage::{Stage, agent};

/// A world with a registry in it, and an image there that the engine does not have yet.
struct Pulling {
    stage: Stage,
    registry: Registry,
    image: String,
}

impl Pulling {
    fn set() -> Self {
        let stage = Stage::set(ProviderName::Docker);
        let registry = Registry::start_beside(stage.engine.as_ref().unwrap()).unwrap();
        let image = registry.reference(&unique("tag"));
        Self { stage, registry, image }.wanting_it()
    }

    fn wanting_it(mut self) -> Self {
        self.stage.sandbox = format!("image = \"{}\"\nnetwork = \"none\"\n", self.image);
        self
    }

    fn run(&self, code: i32) -> Value {
        self.stage.run(code, &agent("echo ran"))
    }

    /// Removes what was pulled, and checks that nothing else is left.
    fn end(self) {
        let docker = self.stage.engine.as_ref().unwrap().docker();
        docker.cli(&["rmi", &self.image]).unwrap();
        self.stage.assert_nothing_left();
    }
}

/// Returns the step that fetches an image, if there was one.
fn fetching(report: &Value) -> Option<&Value> {
    report["checklist"].as_array().unwrap().iter().find(|step| step["step"] == "image")
}

#[test]
fn an_image_that_is_not_there_is_pulled_once_and_stays_for_the_next_run() {
    let pulling = Pulling::set();
    let report = pulling.run(0);
    let step = fetching(&report).expect("it was not there");
    assert_eq!((&step["status"], &step["found"]), (&"passed".into(), &"it was pulled".into()));
    let again = pulling.run(0);
    assert!(fetching(&again).is_none(), "{again:#}");
    assert_eq!(pulling.registry.fetched(), 1);
    pulling.end();
}

#[test]
fn a_registry_that_stumbles_is_asked_again() {
    let pulling = Pulling::set();
    pulling.registry.trouble(503, 2);
    let report = pulling.run(0);
    let step = fetching(&report).unwrap();
    assert!(step["tries"].as_u64().unwrap() > 1, "{step}");
    pulling.end();
}

#[test]
fn an_image_that_no_registry_has_is_named_and_not_asked_for_again() {
    let mut pulling = Pulling::set();
    pulling.image = pulling.image.replace("creel-test-pulled", "creel-no-such-image");
    let pulling = pulling.wanting_it();
    let report = pulling.run(5);
    let cause = &report["cause"];
    assert_eq!((&cause["class"], &cause["step"]), (&"provision_failed".into(), &"image".into()));
    assert!(cause["message"].as_str().unwrap().contains("creel-no-such-image"), "{cause}");
    assert_eq!(fetching(&report).unwrap()["tries"], 1, "{report:#}");
    pulling.stage.assert_nothing_left();
}
