//! Spools contain the agent's text before it is masked. A sandbox that outlives its run has none.

use std::path::Path;

use creel_model::provider::ProviderName;
use creel_testkit::docker::Docker;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::{Value, json};

use crate::quarantined::Immovable;
use crate::support::unique;

use super::run_fixture::{RunFixture, TestRun, agent};
use super::secrets::{held_in, holding, secret};

/// How the driver of a run ends.
#[derive(Debug, Clone, Copy)]
enum DriverEnd {
    /// It ends the run itself.
    Regular,
    /// It is killed, and its watchdog ends the run.
    Killed,
}

/// What keeps a sandbox from being released.
enum Obstacle {
    Directory(Immovable),
    Engine,
    Service,
}

impl Obstacle {
    /// Makes the release of the sandbox of a run fail. A file that cannot be removed has the mark.
    fn plant(test_run: &TestRun<'_>, wire: Option<&Wire>, mark: &str) -> Self {
        let fixture = test_run.fixture;
        match fixture.provider {
            creel_process::NAME => {
                let open = fixture.home.open_records();
                let directory = open.iter().find(|record| record["kind"] == "directory").unwrap();
                let name = directory["name"].as_str().unwrap();
                Self::Directory(Immovable::plant(&fixture.home, name, mark))
            }
            creel_docker::NAME => {
                let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
                wire.unwrap().add(Rule::new("/containers/", denied).method("DELETE"));
                Self::Engine
            }
            _ => {
                let denied = json!({"at": "delete", "fault": "status", "status": 403, "message": "not yours"});
                fixture.cloud.as_ref().unwrap().arm(&denied);
                Self::Service
            }
        }
    }

    fn lift(self, fixture: &RunFixture, wire: Option<&Wire>) {
        match self {
            Self::Directory(file) => file.lift(),
            Self::Engine => wire.unwrap().heal(),
            Self::Service => drop(fixture.cloud.as_ref().unwrap().disarm()),
        }
    }
}

/// Returns the texts that the files of a sandbox contain in any encoding.
fn found_in(fixture: &RunFixture, sandbox: &Value, texts: &[String]) -> Vec<String> {
    let below = |directory: &Path| {
        let found = holding(directory, texts).into_iter();
        found.map(|(path, text)| format!("{text} in {}", path.display())).collect()
    };
    match fixture.provider {
        creel_process::NAME => below(&fixture.home.creel.state().join("sandboxes")),
        creel_daytona::NAME => below(fixture.cloud.as_ref().unwrap().directory()),
        _ => {
            let docker: Docker = fixture.engine.as_ref().unwrap().docker();
            // The container may have been stopped before the engine refused to delete it.
            let exported = docker.cli(&["export", sandbox["id"].as_str().unwrap()]).unwrap();
            assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
            held_in(&exported.stdout, texts).cloned().collect()
        }
    }
}

/// Ends a run whose sandbox cannot be released, and searches the sandbox for what the agent said.
fn search_what_cannot_be_released(provider: ProviderName, driver_end: DriverEnd) {
    let mut fixture = RunFixture::set(provider);
    let wire = fixture.engine.as_ref().map(|engine| Wire::start(engine, 1).unwrap());
    let secrets = vec![secret("said")];
    let mut creel = fixture.home.creel.clone().env("S_SAID", &secrets[0]);
    if let Some(wire) = &wire {
        creel = creel.env("DOCKER_HOST", wire.engine().host());
    }
    fixture.home.creel = creel;
    let mark = unique("left-by-the-agent");
    let script = format!("echo {mark} >mark; echo ${{env:S_SAID}}; sleep 1000");
    let mut test_run = fixture.start("10m", &agent(&script));
    test_run.await_output("[masked");
    let sandbox = test_run.body();
    assert!(!found_in(&fixture, &sandbox, &secrets).is_empty(), "the spool is not searched");
    let obstacle = Obstacle::plant(&test_run, wire.as_ref(), &mark);
    match driver_end {
        DriverEnd::Regular => {
            fixture.home.creel.run(["cancel", &test_run.run]).expect_code(0);
            drop(test_run.driver.take().unwrap().wait());
        }
        DriverEnd::Killed => test_run.kill_driver(),
    }
    fixture.home.await_quiet();
    let open = fixture.home.open_records();
    let is_stuck = open.iter().any(|record| record["state"] == "quarantined");
    assert!(is_stuck, "{provider} {driver_end:?}: {open:#?}");
    assert_eq!(found_in(&fixture, &sandbox, &secrets), [""; 0], "{provider} {driver_end:?}");
    // The search finds the mark, so it does cover what is left of the sandbox.
    let marks = found_in(&fixture, &sandbox, std::slice::from_ref(&mark));
    assert!(!marks.is_empty(), "{provider} {driver_end:?}");
    obstacle.lift(&fixture, wire.as_ref());
    fixture.home.creel.run(["reconcile"]).expect_code(0);
    fixture.assert_nothing_left();
}

#[test]
fn a_process_sandbox_that_cannot_be_released_has_no_spool() {
    search_what_cannot_be_released(creel_process::NAME, DriverEnd::Regular);
}

#[test]
fn a_process_sandbox_that_cannot_be_released_after_its_driver_died_has_no_spool() {
    search_what_cannot_be_released(creel_process::NAME, DriverEnd::Killed);
}

#[test]
fn a_container_that_cannot_be_released_has_no_spool() {
    search_what_cannot_be_released(creel_docker::NAME, DriverEnd::Regular);
}

#[test]
fn a_container_that_cannot_be_released_after_its_driver_died_has_no_spool() {
    search_what_cannot_be_released(creel_docker::NAME, DriverEnd::Killed);
}

#[test]
fn a_cloud_sandbox_that_cannot_be_released_has_no_spool() {
    search_what_cannot_be_released(creel_daytona::NAME, DriverEnd::Regular);
}

#[test]
fn a_cloud_sandbox_that_cannot_be_released_after_its_driver_died_has_no_spool() {
    search_what_cannot_be_released(creel_daytona::NAME, DriverEnd::Killed);
}
