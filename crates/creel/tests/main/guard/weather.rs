//! Engines in bad weather: they restart, are slow, have no room left, or are asked for the same
//! thing twice at once.

use std::fs;
use std::time::Duration;

use creel_testkit::engine::EngineOptions;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

use super::scene::Scene;
use crate::small_disk::SmallDisk;
use crate::support::{Home, PATIENCE};

#[test]
fn an_engine_may_restart_under_a_guard() {
    let mut scene = Scene::set_up();
    let script = format!(
        "docker run -d --init --name before --network bridge -v data:/d -v /a creel-test sleep 1000 >/dev/null
         docker tag creel-test before:1; echo ready >{}
         until [ -e {} ]; do sleep 0.05; done
         docker run --name after creel-test echo again; docker network create after >/dev/null",
        scene.path("ready").display(),
        scene.path("go").display(),
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    scene.engine.kill_hard().unwrap();
    scene.engine.restart().unwrap();
    fs::write(scene.path("go"), "go").unwrap();
    let output = guard.wait().expect_code(0);
    assert_eq!(output.stdout, "again\n", "{output}");
    scene.assert_nothing_left();
}

#[test]
fn an_engine_that_is_away_at_the_end_leaves_records_that_a_reconcile_settles() {
    let mut scene = Scene::set_up();
    let script = format!(
        "docker run -d --init -v data:/d creel-test sleep 1000 >/dev/null; echo ready >{}
         until [ -e {} ]; do sleep 0.05; done; docker ps; exit 0",
        scene.path("ready").display(),
        scene.path("go").display(),
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    scene.engine.kill_hard().unwrap();
    fs::write(scene.path("go"), "go").unwrap();
    // The command ended well, but nobody can say what became of its things.
    let output = guard.wait().expect_code(125);
    assert!(output.stderr.contains("creel guard: cannot reach the Docker Engine"), "{output}");
    assert!(output.stderr.contains("creel reconcile"), "{output}");
    scene.engine.restart().unwrap();
    let given_back = eventually(PATIENCE, || {
        scene.home.creel.run(["reconcile"]);
        scene.home.open_records().is_empty()
    });
    assert!(given_back, "{:#?}", scene.home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn a_slow_engine_only_takes_longer() {
    let scene = Scene::set_up();
    let wire = Wire::start(&scene.engine(), 0).unwrap();
    let slow = Fault::Delay { by: Duration::from_millis(700) };
    let created =
        wire.add(Rule::new("/(containers|networks|volumes)/", slow.clone()).method("POST"));
    let removed = wire.add(Rule::new("/(containers|networks|volumes)/", slow).method("DELETE"));
    let mut home = Home::on(&wire.engine());
    home.creel = home.creel.clone().deadline(Duration::from_secs(60));
    let script = "docker network create net >/dev/null
        docker run --name one --network net -v data:/d creel-test sh -c 'echo slow; exit 3'";
    let output = home.creel.run(["guard", "--", "sh", "-c", script]).expect_code(3);
    assert_eq!(output.stdout, "slow\n", "{output}");
    assert!(created.fired() >= 4 && removed.fired() >= 3, "{created:?} {removed:?}");
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn a_lost_answer_loses_nothing() {
    let scene = Scene::set_up();
    let wire = Wire::start(&scene.engine(), 0).unwrap();
    let lost = [
        wire.add(Rule::new("/containers/create", Fault::LoseResponse).method("POST").times(1)),
        wire.add(Rule::new("/networks/create", Fault::LoseResponse).method("POST").times(1)),
        wire.add(Rule::new("/volumes/create", Fault::LoseResponse).method("POST").times(1)),
    ];
    let home = Home::on(&wire.engine());
    let script = "docker create --name one creel-test true || docker network create net || \
        docker volume create data || exit 9";
    let output = home.creel.run(["guard", "--", "sh", "-c", script]).expect_code(9);
    assert!(output.stderr.contains("cannot reach the Docker Engine"), "{output}");
    assert!(lost.iter().all(|rule| rule.fired() == 1), "{lost:?}");
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn an_address_pool_that_is_used_up_is_explained_and_asked_once() {
    let address_pool = "base=10.214.0.0/24,size=26".to_owned();
    let scene = Scene::with(EngineOptions { address_pool, ..EngineOptions::default() });
    let wire = Wire::start(&scene.engine(), 0).unwrap();
    let asked = wire.add(Rule::new("/networks/create", Fault::Delay { by: Duration::ZERO }));
    let home = Home::on(&wire.engine());
    // The engine's own bridge has an address range of its own.
    let script =
        "for i in 1 2 3 4 5 6; do docker network create net-$i >/dev/null || exit $i; done";
    let direct = scene.direct(script);
    scene.clear();
    let output = home.creel.run(["guard", "--", "sh", "-c", script]);
    assert_eq!(output.code(), direct.code(), "{direct}\n{output}");
    assert!(output.stderr.contains("non-overlapping IPv4 address pool"), "{output}");
    assert!(output.stderr.contains("remove unused networks"), "{output}");
    let count = u64::try_from(output.code().unwrap()).unwrap();
    assert_eq!(asked.fired(), count, "{output}");
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn of_two_creates_of_one_name_one_wins_and_both_are_settled() {
    let scene = Scene::set_up();
    let script = "for round in 1 2 3 4 5; do
            docker create --name same-$round creel-test true >/dev/null 2>&1 & one=$!
            docker create --name same-$round creel-test true >/dev/null 2>&1 & two=$!
            docker volume create same-$round >/dev/null & docker volume create same-$round >/dev/null &
            wait $one; first=$?; wait $two; echo $((first + $?)); wait
        done; docker ps -a -q | wc -l; docker volume ls -q | wc -l";
    let output = scene.guarded(script).expect_code(0);
    assert_eq!(output.stdout, "1\n1\n1\n1\n1\n5\n5\n", "{output}");
    scene.assert_nothing_left();
}

/// Builds an image in several steps, and writes the file `ready` during the second one.
const BUILD: &str = "printf 'FROM creel-test\\nRUN echo 1 >/1\\nRUN sleep 2\\nRUN echo 2 >/2\\nRUN echo 3 >/3\\n' \
    | DOCKER_BUILDKIT=0 docker build -t built:1 - >/dev/null & \
    until docker ps --format '{{.Command}}' | grep -q 'sleep 2'; do sleep 0.05; done; \
    echo ready >ready; wait";

#[test]
fn steps_of_a_build_go_although_lists_of_images_break_off() {
    let scene = Scene::set_up();
    let wire = Wire::start(&scene.engine(), 0).unwrap();
    let mut home = Home::on(&wire.engine());
    home.creel = home.creel.clone().deadline(Duration::from_secs(60));
    let script = format!("cd {}; {BUILD}", home.path("").display());
    let guard = home.creel.spawn(["guard", "--", "sh", "-c", &script]);
    assert!(eventually(PATIENCE, || home.path("ready").exists()));
    let broken = wire.add(Rule::new(r"/images/json", Fault::Reset).times(3));
    let busy = Fault::Status { code: 500, message: "busy".to_owned() };
    let inspected = wire.add(Rule::new(r"/images/sha256[^/]+/json", busy).times(3));
    guard.wait().expect_code(0);
    assert!(broken.fired() == 3 && inspected.fired() == 3, "{broken:?} {inspected:?}");
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn steps_of_a_build_go_although_the_disk_is_full() {
    let scene = Scene::set_up();
    let mut home = Home::on(&scene.engine());
    home.creel = home.creel.clone().deadline(Duration::from_secs(60));
    let disk = SmallDisk::tmpfs(&home.creel.state(), "48m");
    let script = format!("cd {}; {BUILD}", home.path("").display());
    let guard = home.creel.spawn(["guard", "--", "sh", "-c", &script]);
    assert!(eventually(PATIENCE, || home.path("ready").exists()));
    let filler = disk.fill();
    let output = guard.wait();
    assert!(output.stderr.contains("disk is full"), "{output}");
    // What the engine made already is recorded with the space kept for this case.
    assert!(!output.stderr.contains("is not on record"), "{output}");
    assert!(!output.stderr.contains("could not be claimed"), "{output}");
    scene.assert_nothing_left();
    fs::remove_file(filler).unwrap();
    home.creel.run(["reconcile"]).expect_code(0);
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
}
