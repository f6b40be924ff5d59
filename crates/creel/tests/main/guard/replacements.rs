//! What was made under a guard and replaced by somebody else stays, whoever cleans up.

use std::fs;
use std::process::Command;

use creel_testkit::creel::Running;
use creel_testkit::wait::eventually;

use super::kills::watchdog_of;
use super::scene::Scene;
use crate::support::{PATIENCE, kill};

/// Makes a volume with a container that uses it and a tag, then waits.
const DATABASE: &str = "set -e; docker volume create pgdata
    docker run -d --init --name db -v pgdata:/d creel-test sleep 100000
    docker tag creel-test ours:1; echo ready >ready; until [ -e end ]; do sleep 0.1; done";

/// Does by hand what takes the volume away and makes another of its name.
const REPLACE_VOLUME: &str = "docker rm -f db; docker volume rm pgdata; docker volume create pgdata
    docker run --rm -v pgdata:/d creel-test sh -c 'echo mine >/d/file'";

/// Moves the tag to an image of somebody else.
const MOVE_TAG: &str = "docker run --name theirs creel-test true
    docker commit theirs ours:1; docker rm theirs";

/// Starts a guard and waits until its command has made everything.
fn start(scene: &Scene) -> (Running, i32) {
    let guard = scene.start(&[], DATABASE);
    scene.await_word("ready");
    // What was answered is on record a moment after its client knows.
    let recorded = eventually(PATIENCE, || {
        scene.home.open_records().iter().all(|record| record["state"] == "created")
    });
    assert!(recorded, "{:#?}", scene.home.open_records());
    let watchdog = watchdog_of(guard.pid()).unwrap();
    (guard, i32::try_from(watchdog).unwrap())
}

fn kill_alone(guard: Running, watchdog: i32) {
    kill(watchdog);
    guard.kill();
}

/// Checks that somebody else's volume has its file, and that the tag names their image.
#[track_caller]
fn assert_kept(scene: &Scene, image: &str) {
    let text = scene.outside("docker run --rm -v pgdata:/d creel-test cat /d/file");
    assert_eq!(text, "mine");
    assert_eq!(scene.outside("docker inspect -f '{{.Id}}' ours:1"), image);
}

/// Replaces the volume and moves the tag; returns the image that the tag names now.
fn replace(scene: &Scene) -> String {
    scene.outside(REPLACE_VOLUME);
    scene.outside(MOVE_TAG);
    scene.outside("docker inspect -f '{{.Id}}' ours:1")
}

#[test]
fn a_replaced_volume_and_a_moved_tag_survive_every_command() {
    for line in [&["reconcile"][..], &["sweep", "--apply", "--owned"], &["rm"]] {
        let scene = Scene::set_up();
        let (guard, watchdog) = start(&scene);
        kill_alone(guard, watchdog);
        let image = replace(&scene);
        let records = scene.home.open_records();
        let of_volume = records.iter().find(|record| record["name"] == "pgdata").unwrap();
        let resource = of_volume["resource"].as_str().unwrap();
        let words = if line == ["rm"] { vec!["rm", resource] } else { line.to_vec() };
        let output = scene.home.creel.run(&words);
        let told = format!("{}{}", output.stdout, output.stderr);
        assert!(told.contains("it is not ours"), "{output}");
        assert_kept(&scene, &image);
        scene.home.creel.run(["reconcile"]).expect_code(0);
        assert_kept(&scene, &image);
        let why = scene.home.creel.run(["ledger", "why", resource]).expect_code(0);
        assert!(why.stdout.contains("created again without our label"), "{why}");
        assert!(scene.home.open_records().is_empty(), "{:#?}", scene.home.open_records());
    }
}

#[test]
fn a_replaced_volume_and_a_moved_tag_survive_the_watchdog() {
    let scene = Scene::set_up();
    let (guard, watchdog) = start(&scene);
    let signal = |name: &str| {
        let pid = watchdog.to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    guard.kill();
    let image = replace(&scene);
    signal("-CONT");
    scene.home.await_quiet();
    assert_kept(&scene, &image);
    assert!(scene.home.open_records().is_empty(), "{:#?}", scene.home.open_records());
}

#[test]
fn a_replaced_volume_and_a_moved_tag_survive_the_end_of_the_guard() {
    let scene = Scene::set_up();
    let (guard, _) = start(&scene);
    let image = replace(&scene);
    fs::write(scene.path("end"), "").unwrap();
    let output = guard.wait().expect_code(0);
    assert!(output.stderr.contains("it is not ours"), "{output}");
    assert_kept(&scene, &image);
    assert!(eventually(PATIENCE, || scene.home.open_records().is_empty()));
}

#[test]
fn a_tag_that_was_put_on_its_image_again_stays_and_is_reported() {
    let scene = Scene::set_up();
    let (guard, watchdog) = start(&scene);
    kill_alone(guard, watchdog);
    scene.outside("docker tag creel-test ours:1");
    let output = scene.home.creel.run(["reconcile"]).expect_code(3);
    assert!(output.stdout.contains("nothing proves that it is ours"), "{output}");
    scene.outside("docker inspect ours:1");
}

#[test]
fn what_was_not_replaced_goes_and_the_audit_says_why() {
    let scene = Scene::set_up();
    let (guard, watchdog) = start(&scene);
    kill_alone(guard, watchdog);
    scene.home.creel.run(["reconcile"]).expect_code(0);
    scene.assert_nothing_left();
    let why = scene.home.creel.run(["ledger", "why", "pgdata", "--json"]).expect_code(0).json();
    let evidence = why["releases"][0]["evidence"].as_str().unwrap();
    assert!(evidence.contains("it carries the label of res_"), "{why:#}");
    let why = scene.home.creel.run(["ledger", "why", "ours:1"]).expect_code(0);
    assert!(why.stdout.contains("as recorded"), "{why}");
}
