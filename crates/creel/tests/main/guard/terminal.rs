//! A user at a terminal: the command has it as if no guard were there.

use std::fs;

use creel_testkit::creel::Output;
use serde_json::{Value, json};

use super::scene::Scene;

/// What sits at the terminal.
const USER: &str = include_str!("terminal.py");

/// The keys that interrupt, suspend and detach.
pub(crate) const INTERRUPT: &str = "\u{3}";
const SUSPEND: &str = "\u{1a}";
const DETACH: &str = "\u{10}\u{11}";

/// Lets a user sit at a terminal in front of a command.
#[track_caller]
pub(crate) fn sit(scene: &Scene, steps: &Value, command: &[&str]) -> Output {
    fs::write(scene.path("terminal.py"), USER).unwrap();
    let mut shell = scene.shell().env("TERM", "xterm").env("PS1", "$ ");
    shell = shell.env("CREEL_HOME", scene.home.creel.state());
    let words = ["-c", "cd; exec python3 terminal.py \"$@\"", "user", &steps.to_string()];
    shell.run([&words, command].concat())
}

/// The words that put a guard before a command.
const GUARD: [&str; 3] = [env!("CARGO_BIN_EXE_creel"), "guard", "--"];

#[test]
fn an_interactive_container_has_the_terminal() {
    let scene = Scene::set_up();
    let command = ["docker", "run", "-it", "--rm", "creel-test", "sh"];
    let steps = json!([
        ["expect", "# "],
        ["send", "tty\n"],
        ["expect", "/dev/pts/0"],
        // Clients send the size when the container has started.
        ["send", "until [ \"$(stty size)\" = '24 80' ]; do :; done; echo si''zed\n"],
        ["expect", "sized"],
        ["resize", 31, 101],
        ["send", "until [ \"$(stty size)\" = '31 101' ]; do :; done; echo re''sized\n"],
        ["expect", "resized"],
        // It goes to the shell inside, and not to the client or the guard.
        ["send", INTERRUPT],
        ["expect", "# "],
        ["send", "echo still he''re\n"],
        ["expect", "still here"],
        ["send", "exit 5\n"],
    ]);
    sit(&scene, &steps, &command).expect_code(5);
    sit(&scene, &steps, &[&GUARD[..], &command].concat()).expect_code(5);
    scene.assert_nothing_left();
}

#[test]
fn a_detached_container_goes_on_until_the_command_ends() {
    let scene = Scene::set_up();
    let script =
        "docker run -it --name left creel-test sh; docker inspect -f '{{.State.Status}}' left";
    let command = [&GUARD[..], &["sh", "-c", script]].concat();
    let steps = json!([["expect", "# "], ["send", DETACH], ["expect", "running"]]);
    sit(&scene, &steps, &command).expect_code(0);
    scene.assert_nothing_left();
}

#[test]
fn one_interrupt_asks_and_a_second_one_kills() {
    let scene = Scene::set_up();
    let polite = "docker run -d --init creel-test sleep 1000 >/dev/null
        trap 'echo trapped; exit 3' INT; echo ready; while :; do sleep 0.1; done";
    let steps = json!([["expect", "ready"], ["send", INTERRUPT], ["expect", "trapped"]]);
    sit(&scene, &steps, &[&GUARD[..], &["sh", "-c", polite]].concat()).expect_code(3);
    scene.assert_nothing_left();
    let stubborn = "docker run -d --init creel-test sleep 1000 >/dev/null
        trap '' INT; echo ready; while :; do sleep 0.1; done";
    let steps = json!([
        ["expect", "ready"],
        ["send", INTERRUPT],
        ["expect", "once more kills it"],
        ["send", INTERRUPT],
        ["expect", "killing the command"],
        ["expect", "released"],
    ]);
    sit(&scene, &steps, &[&GUARD[..], &["sh", "-c", stubborn]].concat()).expect_code(137);
    scene.assert_nothing_left();
}

#[test]
fn a_suspended_command_gives_the_shell_its_terminal_back() {
    let scene = Scene::set_up();
    let script = "docker run -d --init --name it creel-test sleep 1000 >/dev/null; \
        echo rea\"\"dy; read word; docker exec it echo got $word";
    let typed = format!("{} guard -- sh -c '{script}'\n", GUARD[0]);
    let steps = json!([
        ["expect", "bash"],
        ["send", typed],
        ["expect", "ready"],
        ["send", SUSPEND],
        ["expect", "Stopped"],
        ["send", "docker ps --format 'see{{.Names}}'\n"],
        ["expect", "seeit"],
        ["send", "fg\n"],
        ["expect", "guard -- sh"],
        ["send", "one more word\n"],
        ["expect", "got one more word"],
        ["expect", "released"],
        ["send", "exit 6\n"],
    ]);
    sit(&scene, &steps, &["bash", "--norc", "--noprofile", "-i"]).expect_code(6);
    scene.assert_nothing_left();
}
