//! How a guard ends: exit codes, what is kept, and what the command finds around it.

use std::fs;

use creel_testkit::wait::eventually;
use serde_json::Value;

use super::scene::Scene;
use crate::support::{Home, PATIENCE};

#[test]
fn the_exit_code_is_the_commands_own() {
    let home = Home::without_engine();
    let run = |words: &[&str]| home.creel.run([&["guard", "--"], words].concat());
    for code in [0, 1, 2, 7, 124, 125, 126, 255] {
        run(&["sh", "-c", &format!("exit {code}")]).expect_code(code);
    }
    run(&["sh", "-c", "kill -TERM $$"]).expect_code(128 + 15);
    run(&["sh", "-c", "kill -KILL $$"]).expect_code(128 + 9);
    let output = run(&["/no/such/program"]).expect_code(125);
    assert!(output.stderr.contains("there is no program `/no/such/program`"), "{output}");
    fs::write(home.path("plain"), "text").unwrap();
    run(&[home.path("plain").to_str().unwrap()]).expect_code(125);
    home.creel.run(["guard", "--no-such-flag", "--", "true"]).expect_code(2);
    home.creel.run(["guard", "true"]).expect_code(2);
    assert!(home.open_records().is_empty() && home.on_machine().is_empty());
}

#[test]
fn an_engine_that_does_not_answer_stops_the_guard_before_the_command() {
    let home = Home::without_engine();
    let creel = home.creel.clone().env("DOCKER_HOST", "unix:///no/such/docker.sock");
    let mark = home.path("mark");
    let output = creel.run(["guard", "--", "touch", mark.to_str().unwrap()]).expect_code(125);
    assert!(!mark.exists(), "{output}");
    assert!(home.open_records().is_empty(), "{output}");
}

#[test]
fn the_command_finds_a_private_socket_and_a_private_temporary_directory() {
    let scene = Scene::set_up();
    let misleading = [("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/no/such/path")];
    let mut creel = scene.home.creel.clone().env("WORD", "kept");
    for (key, value) in misleading {
        creel = creel.env(key, value);
    }
    // The guard itself speaks over a socket, to which these do not apply either.
    let script = "echo $WORD $DOCKER_TLS_VERIFY$DOCKER_CERT_PATH; docker ps -q && echo answered
        echo ${DOCKER_HOST#unix://}; echo $TMPDIR; stat -c %a ${DOCKER_HOST#unix://} $TMPDIR/..
        mktemp -d >/dev/null; pwd";
    let output = creel.run(["guard", "--", "sh", "-c", script]).expect_code(0);
    let lines: Vec<&str> = output.stdout.lines().collect();
    let [word, answered, socket, temporary, mode, directory_mode, place] = lines[..] else {
        panic!("{output}");
    };
    let state = scene.home.creel.state();
    assert_eq!((word, answered, directory_mode), ("kept", "answered", "700"), "{output}");
    assert!(socket.starts_with(state.to_str().unwrap()) && socket != scene.engine().host());
    assert!(temporary.starts_with(state.to_str().unwrap()), "{output}");
    // Those of a user who may use the engine's own may use this one.
    let own = scene.outside(&format!("stat -c %a {}", scene.engine().socket().display()));
    assert_eq!(mode, own, "{output}");
    assert_eq!(place, std::env::current_dir().unwrap().to_str().unwrap());
    assert!(!fs::exists(socket).unwrap() && !fs::exists(temporary).unwrap());
    scene.assert_nothing_left();
}

#[test]
fn what_is_kept_goes_when_its_time_has_passed() {
    let scene = Scene::set_up();
    let script = "docker run -d --init --name kept -v data:/d creel-test sleep 1000 >/dev/null
        docker network create kept >/dev/null; docker tag creel-test kept:1; sleep 1000 & touch $TMPDIR/file";
    let proof = scene.path("proof.json").display().to_string();
    let flags = ["--keep", "--ttl", "4s", "--certificate", &proof];
    let output = scene.guarded_with(&flags, script).expect_code(0);
    assert!(output.stderr.contains("creel sweep --owned --apply"), "{output}");
    let proof: Value = serde_json::from_str(&fs::read_to_string(proof).unwrap()).unwrap();
    assert_eq!(proof["verdict"], "kept", "{proof:#}");
    assert_eq!(proof["kept"].as_array().unwrap().len(), 4, "{proof:#}");
    scene.home.await_quiet();
    scene.home.creel.run(["reconcile"]).expect_code(0);
    let there = "docker ps -q --filter name=kept | wc -l; docker volume ls -q; docker image ls -q kept:1 | wc -l";
    assert_eq!(scene.outside(there), "1\ndata\n1");
    assert_eq!(scene.home.on_machine(), Vec::<String>::new(), "only Docker's objects are kept");
    let given_back = eventually(PATIENCE, || {
        scene.home.creel.run(["reconcile"]).expect_code(0);
        scene.home.open_records().is_empty()
    });
    assert!(given_back, "{:#?}", scene.home.open_records());
    scene.assert_nothing_left();
}
