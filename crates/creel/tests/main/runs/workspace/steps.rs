//! Setup steps and the proof of the agent: what fails is named, and whose fault it is not.

use crate::runs::scene::{Ended, Scene};

/// Writes a setup step; `more` are further keys.
fn step(run: &str, more: &str) -> String {
    format!("[[setup]]\nname = \"tools\"\nrun = '{run}'\n{more}\n")
}

/// Returns how often a step's script ran that adds a line to a file in the home.
fn lines(scene: &Scene) -> usize {
    let text = std::fs::read_to_string(scene.home.path("lines")).unwrap_or_default();
    text.lines().count()
}

/// Writes a script that leaves a line in the home, and does something more.
fn counted(scene: &Scene, then: &str) -> String {
    format!("echo ran >> {}; {then}", scene.home.path("lines").display())
}

fn run(run: impl Fn(&Scene) -> String, more: &str) -> (Scene, Ended) {
    let scene = Scene::new();
    let ended = scene.run(&step(&run(&scene), more));
    (scene, ended)
}

#[test]
fn a_setup_step_that_fails_is_named_with_its_code_and_its_last_words() {
    let (scene, ended) = run(|_| "echo no such mirror >&2; exit 7".to_owned(), "");
    scene.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    let step = ended.step("setup tools");
    assert_eq!((&step["exit_code"], &step["tries"]), (&7.into(), &1.into()));
    assert!(step["tail"].as_str().unwrap().contains("no such mirror"));
    assert!(ended.report["cause"]["message"].as_str().unwrap().contains("no such mirror"));
}

#[test]
fn an_optional_setup_step_may_fail() {
    let (scene, ended) = run(|_| "exit 7".to_owned(), "optional = true");
    scene.assert_succeeded(&ended);
    assert_eq!(ended.step("setup tools")["status"], "tolerated");
}

#[test]
fn a_setup_step_that_says_nothing_for_too_long_is_killed() {
    let (scene, ended) = run(|_| "echo begun; sleep 1000".to_owned(), "inactivity = \"1s\"");
    scene.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    assert!(ended.found("setup tools").contains("said nothing"), "{}", ended.output);
}

#[test]
fn a_setup_step_that_takes_too_long_is_killed_however_much_it_says() {
    let talk = "while :; do echo more; sleep 0.1; done";
    let (scene, ended) = run(|_| talk.to_owned(), "timeout = \"1s\"\ninactivity = \"900ms\"");
    scene.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    assert!(ended.found("setup tools").contains("time limit"), "{}", ended.output);
}

#[test]
fn a_setup_step_is_tried_as_often_as_it_may_be() {
    let (scene, ended) = run(|scene| counted(scene, "exit 1"), "tries = 2");
    scene.assert_stopped(&ended, "bootstrap_failed", "setup tools");
    assert_eq!((ended.tries("setup tools"), lines(&scene)), (2, 2));

    let second = |scene: &Scene| {
        let lines = scene.home.path("lines");
        counted(scene, &format!("test $(wc -l < {}) = 2", lines.display()))
    };
    let (scene, ended) = run(second, "tries = 5");
    scene.assert_succeeded(&ended);
    assert_eq!((ended.tries("setup tools"), lines(&scene)), (2, 2));
}

#[test]
fn an_agent_that_its_installer_did_not_install_is_not_blamed() {
    let scene = Scene::new();
    let tables = step("echo agent installed", "")
        + "[runtime]\nkind = \"command\"\ncommand = [\"an-agent-that-is-not-there\"]\n";
    let ended = scene.run(&tables);
    scene.assert_stopped(&ended, "agent_launch_failed", "agent");
    assert_eq!(ended.step("setup tools")["status"], "passed");
    let action = ended.report["cause"]["action"].as_str().unwrap();
    assert!(action.contains("the agent itself did nothing wrong"), "{action}");
}

#[test]
fn an_agent_that_cannot_be_executed_or_fails_its_check_does_not_start() {
    let scene = Scene::new();
    let broken = scene.home.path("broken");
    std::fs::write(&broken, "#!/nowhere/interpreter\n").unwrap();
    let runtime = |check: &str| {
        format!("[runtime]\nkind = \"command\"\ncommand = [\"{}\"]\n{check}\n", broken.display())
    };
    for check in ["", "check = [\"sh\", \"-c\", \"exit 3\"]"] {
        let ended = scene.run(&runtime(check));
        scene.assert_stopped(&ended, "agent_launch_failed", "agent");
    }
}
