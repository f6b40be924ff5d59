//! Setup steps and the check of the agent: the failing step is named, and so is whose fault it is.

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};

/// Writes a setup step; `more` are further keys.
fn step(run: &str, more: &str) -> String {
    format!("[[setup]]\nname = \"tools\"\nrun = '{run}'\n{more}\n")
}

/// Returns how often a step ran whose script appends a line to a file in the home.
fn lines(fixture: &WorkflowFixture) -> usize {
    let text = std::fs::read_to_string(fixture.home.path("lines")).unwrap_or_default();
    text.lines().count()
}

/// Returns a script that appends a line to a file in the home, and then runs another command.
fn counted(fixture: &WorkflowFixture, then: &str) -> String {
    format!("echo ran >> {}; {then}", fixture.home.path("lines").display())
}

fn run(run: impl Fn(&WorkflowFixture) -> String, more: &str) -> (WorkflowFixture, FinishedRun) {
    let fixture = WorkflowFixture::new();
    let ended = fixture.run(&step(&run(&fixture), more));
    (fixture, ended)
}

#[test]
fn a_failing_setup_step_is_reported_with_its_code_and_last_output() {
    let (fixture, ended) = run(|_| "echo no such mirror >&2; exit 7".to_owned(), "");
    fixture.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    let step = ended.step("setup tools");
    assert_eq!((&step["exit_code"], &step["tries"]), (&7.into(), &1.into()));
    assert!(step["tail"].as_str().unwrap().contains("no such mirror"));
    assert!(ended.report["cause"]["message"].as_str().unwrap().contains("no such mirror"));
}

#[test]
fn an_optional_setup_step_may_fail() {
    let (fixture, ended) = run(|_| "exit 7".to_owned(), "optional = true");
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.step("setup tools")["status"], "tolerated");
}

#[test]
fn a_silent_setup_step_is_killed_at_its_silence_limit() {
    let (fixture, ended) = run(|_| "echo begun; sleep 1000".to_owned(), "inactivity = \"1s\"");
    fixture.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    assert!(ended.found("setup tools").contains("wrote nothing"), "{}", ended.output);
}

#[test]
fn a_slow_setup_step_is_killed_at_its_time_limit_despite_output() {
    let talk = "while :; do echo more; sleep 0.1; done";
    let (fixture, ended) = run(|_| talk.to_owned(), "timeout = \"1s\"\ninactivity = \"900ms\"");
    fixture.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    assert!(ended.found("setup tools").contains("time limit"), "{}", ended.output);
}

#[test]
fn a_setup_step_is_retried_up_to_its_limit() {
    let (fixture, ended) = run(|fixture| counted(fixture, "exit 1"), "tries = 2");
    fixture.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    assert_eq!((ended.tries("setup tools"), lines(&fixture)), (2, 2));

    let second = |fixture: &WorkflowFixture| {
        let lines = fixture.home.path("lines");
        counted(fixture, &format!("test $(wc -l < {}) = 2", lines.display()))
    };
    let (fixture, ended) = run(second, "tries = 5");
    fixture.assert_succeeded(&ended);
    assert_eq!((ended.tries("setup tools"), lines(&fixture)), (2, 2));
}

#[test]
fn an_agent_that_its_installer_did_not_install_is_not_blamed() {
    let fixture = WorkflowFixture::new();
    let tables = step("echo agent installed", "")
        + "[runtime]\nkind = \"command\"\ncommand = [\"an-agent-that-is-not-there\"]\n";
    let ended = fixture.run(&tables);
    fixture.assert_stopped(&ended, "agent_launch_failed", "agent");
    assert_eq!(ended.step("setup tools")["status"], "passed");
    let action = ended.report["cause"]["action"].as_str().unwrap();
    assert!(action.contains("the agent itself did nothing wrong"), "{action}");
}

#[test]
fn an_agent_that_cannot_be_executed_or_fails_its_check_does_not_start() {
    let fixture = WorkflowFixture::new();
    let broken = fixture.home.path("broken");
    std::fs::write(&broken, "#!/nowhere/interpreter\n").unwrap();
    let runtime = |check: &str| {
        format!("[runtime]\nkind = \"command\"\ncommand = [\"{}\"]\n{check}\n", broken.display())
    };
    for check in ["", "check = [\"sh\", \"-c\", \"exit 3\"]"] {
        let ended = fixture.run(&runtime(check));
        fixture.assert_stopped(&ended, "agent_launch_failed", "agent");
    }
}
