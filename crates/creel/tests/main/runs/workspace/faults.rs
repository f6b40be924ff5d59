//! Clones that hang, stall, are cut, or meet a server that fails.

use creel_testkit::git::{Fault, GitServer};
use serde_json::Value;

use crate::runs::scene::{Ended, Scene};

use super::repositories::{KEEP, repository};

/// More often than any clone is tried.
const ALWAYS: u32 = 100;

/// Runs a workflow with one repository that has a fault.
fn run_with(fault: Fault, times: u32, more: &str) -> (GitServer, Scene, Ended) {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    git.add("app").unwrap();
    git.trouble("app", fault, times);
    let ended = scene.run(&repository(&git.url("app"), "app", more));
    assert!(git.fired("app") > 0, "the fault did not happen\n{}", ended.output);
    (git, scene, ended)
}

#[test]
fn a_clone_that_gets_no_answer_is_ended_for_its_silence() {
    let (git, scene, ended) = run_with(Fault::Hang, ALWAYS, "inactivity = \"1s\"");
    scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert!(ended.found("clone app").contains("said nothing"), "{}", ended.output);
    assert_eq!((ended.tries("clone app"), git.fired("app")), (2, 2));
}

#[test]
fn a_clone_whose_pack_stalls_is_ended_for_its_silence() {
    let (git, scene, ended) = run_with(Fault::Stall, ALWAYS, "inactivity = \"1s\"");
    scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert!(ended.found("clone app").contains("said nothing"), "{}", ended.output);
    assert_eq!((ended.tries("clone app"), git.fired("app")), (2, 2));
}

#[test]
fn a_clone_that_takes_too_long_is_ended_at_its_limit() {
    let (_git, scene, ended) = run_with(Fault::Stall, ALWAYS, "timeout = \"1s\"");
    scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert!(ended.found("clone app").contains("time limit"), "{}", ended.output);
}

#[test]
fn a_clone_that_is_cut_is_tried_once_more() {
    let (git, scene, ended) = run_with(Fault::Cut, ALWAYS, "");
    scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert_eq!((ended.tries("clone app"), git.fired("app")), (2, 2));

    let (_git, scene, ended) = run_with(Fault::Cut, 1, "");
    scene.assert_succeeded(&ended);
    assert_eq!(ended.tries("clone app"), 2);
}

#[test]
fn a_server_that_fails_is_asked_once_more() {
    let (_git, scene, ended) = run_with(Fault::Status(500), ALWAYS, "");
    scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert_eq!(ended.tries("clone app"), 2);

    let (_git, scene, ended) = run_with(Fault::Status(500), 1, "");
    scene.assert_succeeded(&ended);
    assert_eq!(ended.tries("clone app"), 2);
}

#[test]
fn a_server_that_forbids_or_wants_a_login_is_a_matter_of_credentials() {
    for status in [401, 403] {
        let (_git, scene, ended) = run_with(Fault::Status(status), ALWAYS, "");
        scene.assert_stopped(&ended, "credential_unavailable", "clone app");
        assert_eq!(ended.tries("clone app"), 1, "{status}");
    }
}

#[test]
fn a_server_that_is_not_there_is_looked_for_once_more() {
    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    let url = git.url("app");
    drop(git);
    let ended = scene.run(&repository(&url, "app", ""));
    scene.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert_eq!(ended.tries("clone app"), 2);
}

#[test]
fn a_step_is_on_record_before_and_after_with_its_limits() {
    let more = "inactivity = \"1s\"\ntimeout = \"20s\"";
    let (_git, _scene, ended) = run_with(Fault::Hang, ALWAYS, more);
    let of_clone = |event: &&Value| event["step"]["step"] == "clone app";
    let recorded: Vec<&Value> = ended.events.iter().filter(of_clone).collect();
    let names = recorded.iter().map(|event| event["event"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["step_started", "step_ended"]);
    for event in recorded {
        let step = &event["step"];
        assert_eq!((&step["inactivity_limit"], &step["hard_limit"]), (&1.0.into(), &20.0.into()));
        assert_eq!(step["expected"], "the repository is cloned");
    }
    assert!(ended.step("clone app")["seconds"].as_f64().unwrap() >= 2.0, "{}", ended.output);
}

#[test]
fn half_a_clone_is_not_left_for_the_agent() {
    let more = "required = false\ninactivity = \"1s\"";
    let (_git, scene, ended) = run_with(Fault::Stall, ALWAYS, more);
    scene.assert_succeeded(&ended);
    assert_eq!(ended.step("clone app")["status"], "tolerated");

    let (git, scene) = (GitServer::start().unwrap(), Scene::new());
    git.add("app").unwrap();
    git.trouble("app", Fault::Stall, ALWAYS);
    let tables = repository(&git.url("app"), "app", more)
        + "[runtime]\nkind = \"command\"\ncommand = [\"/nowhere/agent\"]\n"
        + KEEP;
    let ended = scene.run(&tables);
    ended.assert_cause("agent_launch_failed", "agent");
    assert!(!scene.sandbox().join("workspace/work/app").exists());
    scene.give_back();
}
