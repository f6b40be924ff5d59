//! Clones that hang, stall, are cut, or reach a failing server.

use creel_testkit::git::{GitFault, GitServer};
use serde_json::Value;

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};

use super::repositories::{KEEP, repository};

/// More than the number of attempts of any clone.
const ALWAYS: u32 = 100;

/// Runs a workflow with one repository that has a fault.
fn run_with(fault: GitFault, times: u32, more: &str) -> (GitServer, WorkflowFixture, FinishedRun) {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    git.add("app").unwrap();
    git.arm("app", fault, times);
    let ended = fixture.run(&repository(&git.url("app"), "app", more));
    assert!(git.fired("app") > 0, "the fault did not happen\n{}", ended.output);
    (git, fixture, ended)
}

#[test]
fn a_clone_without_a_response_is_ended_at_its_silence_limit() {
    let (git, fixture, ended) = run_with(GitFault::Hang, ALWAYS, "inactivity = \"1s\"");
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert!(ended.found("clone app").contains("wrote nothing"), "{}", ended.output);
    assert_eq!((ended.tries("clone app"), git.fired("app")), (2, 2));
}

#[test]
fn a_clone_whose_pack_stalls_is_ended_at_its_silence_limit() {
    let (git, fixture, ended) = run_with(GitFault::Stall, ALWAYS, "inactivity = \"1s\"");
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert!(ended.found("clone app").contains("wrote nothing"), "{}", ended.output);
    assert_eq!((ended.tries("clone app"), git.fired("app")), (2, 2));
}

#[test]
fn a_clone_that_takes_too_long_is_ended_at_its_limit() {
    let (_git, fixture, ended) = run_with(GitFault::Stall, ALWAYS, "timeout = \"1s\"");
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert!(ended.found("clone app").contains("time limit"), "{}", ended.output);
}

#[test]
fn a_clone_that_is_cut_is_retried_once() {
    let (git, fixture, ended) = run_with(GitFault::Cut, ALWAYS, "");
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert_eq!((ended.tries("clone app"), git.fired("app")), (2, 2));

    let (_git, fixture, ended) = run_with(GitFault::Cut, 1, "");
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.tries("clone app"), 2);
}

#[test]
fn a_clone_is_retried_once_when_the_server_fails() {
    let (_git, fixture, ended) = run_with(GitFault::Status(500), ALWAYS, "");
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert_eq!(ended.tries("clone app"), 2);

    let (_git, fixture, ended) = run_with(GitFault::Status(500), 1, "");
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.tries("clone app"), 2);
}

#[test]
fn a_server_that_refuses_or_requires_a_login_is_a_credential_error() {
    for status in [401, 403] {
        let (_git, fixture, ended) = run_with(GitFault::Status(status), ALWAYS, "");
        fixture.assert_stopped(&ended, "credential_unavailable", "clone app");
        assert_eq!(ended.tries("clone app"), 1, "{status}");
    }
}

#[test]
fn an_unreachable_server_is_tried_once_more() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let url = git.url("app");
    drop(git);
    let ended = fixture.run(&repository(&url, "app", ""));
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone app");
    assert_eq!(ended.tries("clone app"), 2);
}

#[test]
fn a_step_is_on_record_before_and_after_with_its_limits() {
    let more = "inactivity = \"1s\"\ntimeout = \"20s\"";
    let (_git, _scene, ended) = run_with(GitFault::Hang, ALWAYS, more);
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
fn an_incomplete_clone_is_not_left_for_the_agent() {
    let more = "required = false\ninactivity = \"1s\"";
    let (_git, fixture, ended) = run_with(GitFault::Stall, ALWAYS, more);
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.step("clone app")["status"], "tolerated");

    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    git.add("app").unwrap();
    git.arm("app", GitFault::Stall, ALWAYS);
    let tables = repository(&git.url("app"), "app", more)
        + "[runtime]\nkind = \"command\"\ncommand = [\"/nowhere/agent\"]\n"
        + KEEP;
    let ended = fixture.run(&tables);
    ended.assert_cause("agent_launch_failed", "agent");
    assert!(!fixture.sandbox().join("workspace/work/app").exists());
    fixture.release_kept();
}
