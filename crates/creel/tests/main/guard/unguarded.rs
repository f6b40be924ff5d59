//! Harnesses that no guard watched, killed at any instant: their recipes release what they left
//! once they have ended, or once the user says so, and release nothing of them while they live.
//!
//! A test must not depend on whether some other Harbor runs on this machine. Either the harness of
//! the test itself lives, or the user vouches for its end, or Harbor runs under a name of its own.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use creel_testkit::creel::Running;
use creel_testkit::wait::eventually;
use serde_json::Value;

use super::harbor::{await_begun, job, job_of, program, set_up, write_task};
use super::scene::{Scene, part};
use crate::support::{Ending, assert_killed, assignments_of, unique};

/// How long a loaded machine may take for one harness.
const PATIENCE: Duration = Duration::from_secs(120);
/// A solution that never ends.
const ENDLESS: &str = "touch /app/begun; sleep 100000";

/// Returns a random instant within a time.
fn any_instant(within: Duration) -> Duration {
    within.mul_f64(fastrand::f64())
}

/// Returns the processes that talk to the engine of a test, its own aside.
fn clients(scene: &Scene) -> Vec<i32> {
    let host = scene.engine().host();
    let ours = assignments_of("DOCKER_HOST").into_iter().filter(|(_, value)| *value == host);
    ours.map(|(pid, _)| pid).collect()
}

/// Sweeps until nothing is left, and no process that outlived the harness can make more.
#[track_caller]
fn assert_sweep_leaves_nothing(scene: &Scene, flags: &str) {
    assert_sweep_leaves_only(scene, flags, |_| false);
}

/// Like [`assert_sweep_leaves_nothing`], except for objects that may stay.
#[track_caller]
fn assert_sweep_leaves_only(scene: &Scene, flags: &str, may_stay: impl Fn(&String) -> bool) {
    let line = format!("sweep --json --apply {flags}");
    let mut swept = Value::Null;
    let is_clean = eventually(PATIENCE, || {
        let output = scene.home.creel.run(line.split_whitespace());
        swept = output.json();
        // What the engine was still stopping has changed since the plan: the next sweep takes it.
        let has_changed = swept["drifted"].as_u64() > Some(0);
        output.expect_code(if has_changed { 4 } else { 0 });
        scene.left().iter().all(&may_stay) && clients(scene).is_empty()
    });
    assert!(is_clean, "{:#?}\n{:?}\n{swept:#}", scene.left(), clients(scene));
}

/// Starts a script that is killed later.
fn start(scene: &Scene, script: &str) -> Running {
    scene.shell().deadline(PATIENCE).spawn(["-c", &format!("cd\n{script}")])
}

/// Makes what resembles the leftovers of a harness, and is somebody else's.
fn plant_decoys(scene: &mut Scene) {
    scene.outside(
        "docker run -d --init --name decoy-trial \
           --label com.docker.compose.project=bare__abcdefg__envx \
           --label com.docker.compose.container-number=1 debian-test sleep 100000\n\
         docker network create --label com.docker.compose.project=decoy \
           --label com.docker.compose.network=default decoy_default\n\
         docker run -d --init --name decoy-web-1 --network decoy_default \
           --label com.docker.compose.project=decoy \
           --label com.docker.compose.container-number=1 debian-test sleep 100000\n\
         docker run -d --init --name decoy-test --label org.testcontainers=true \
           debian-test sleep 100000\n\
         docker volume create decoy_data\n\
         docker tag debian-test decoy__env-main",
    );
    scene.remember();
}

/// Returns the names of the decoys that run.
fn decoys(scene: &Scene) -> String {
    let names = scene.outside("docker ps --format '{{.Names}}' --filter name=decoy | sort");
    let more = "docker network ls -q --filter name=decoy_default | wc -l; \
                docker volume ls -q --filter name=decoy_data | wc -l; \
                docker images -q decoy__env-main | wc -l";
    format!("{names} {}", scene.outside(more)).split_whitespace().collect::<Vec<_>>().join(" ")
}

const ALL_DECOYS: &str = "decoy-test decoy-trial decoy-web-1 1 1 1";

/// Saves Harbor's recipe under another name, without the hours that it waits, for this program.
fn keep_impatient_recipe(scene: &Scene, program: &str) {
    let recipe = scene.home.creel.run(["recipes", "show", "harbor"]).expect_code(0).stdout;
    let at_once = |line: &str| match line.split_once(" = ") {
        Some(("older_than", _)) => "older_than = \"0s\"".to_owned(),
        Some(("programs", _)) => format!("programs = [\"{program}\"]"),
        _ => line.to_owned(),
    };
    let recipe: Vec<String> = recipe.lines().map(at_once).collect();
    let directory = scene.home.creel.state().join("recipes");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("harbor-now.toml"), recipe.join("\n")).unwrap();
}

#[test]
fn harbor_keeps_its_live_trial_and_leaves_nothing_once_it_is_killed() {
    let mut scene = set_up();
    keep_impatient_recipe(&scene, "harbor");
    plant_decoys(&mut scene);
    write_task(&scene, "bare", ENDLESS);
    let harness = start(&scene, &job("bare", "bare"));
    await_begun(&scene, "bare", &harness);

    let sweep = ["sweep", "--recipe", "harbor-now", "--apply", "--json"];
    let spared = scene.home.creel.run(sweep).expect_code(0).json();
    assert_eq!((&spared["planned"], &spared["gone"]), (&0.into(), &0.into()), "{spared:#}");
    assert!(spared["items"].to_string().contains("may use it"), "{spared:#}");

    assert_killed(&harness.kill());
    let left = scene.left();
    assert!(left.len() >= 3, "a killed harness leaves a container, a network, an image: {left:#?}");
    assert_sweep_leaves_nothing(&scene, "--ended --recipe harbor");
    for round in ["one", "two"] {
        write_task(&scene, round, ENDLESS);
        let harness = start(&scene, &job(round, round));
        let instant = any_instant(Duration::from_secs(20));
        println!("harbor is killed after {instant:?}");
        std::thread::sleep(instant);
        assert_killed(&harness.kill());
        assert_sweep_leaves_nothing(&scene, "--ended --recipe harbor");
    }
    assert_eq!(decoys(&scene), ALL_DECOYS);
}

/// Starts processes that only mention a program: a reader of its log, and a shell that has the name
/// as an argument, as an editor or a test runner has. They end with the test.
fn mention(scene: &Scene, program: &str) -> [Ending; 2] {
    let log = scene.path(&format!("{program}.log"));
    fs::write(&log, "").unwrap();
    let reader = Command::new("tail").arg("-f").arg(log).spawn().unwrap();
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", "read word", program]).stdin(Stdio::piped()).spawn().unwrap();
    [Ending(reader), Ending(shell)]
}

#[test]
fn what_a_killed_harbor_left_is_released_without_the_word_of_the_user() {
    let mut scene = set_up();
    // No other process on this machine runs this program, so the recipe sees only ours.
    let name = unique("harbor-copy");
    let copy = scene.path(&name);
    fs::copy(program(), &copy).unwrap();
    keep_impatient_recipe(&scene, &name);
    plant_decoys(&mut scene);
    write_task(&scene, "copied", ENDLESS);
    let harness = start(&scene, &job_of(&copy, "copied", "copied"));
    await_begun(&scene, "copied", &harness);
    let _mentioning = mention(&scene, &name);

    let sweep = ["sweep", "--recipe", "harbor-now", "--apply", "--json"];
    let spared = scene.home.creel.run(sweep).expect_code(0).json();
    assert_eq!((&spared["planned"], &spared["gone"]), (&0.into(), &0.into()), "{spared:#}");
    assert!(spared["items"].to_string().contains(&name), "{spared:#}");

    assert_killed(&harness.kill());
    let left = scene.left();
    assert!(left.len() >= 3, "a killed harness leaves a container, a network, an image: {left:#?}");
    // The engine does not report when BuildKit tagged an image. Its age is unknown, so it needs the
    // word of the user.
    let is_image = |object: &String| object.starts_with("Image ");
    assert_sweep_leaves_only(&scene, "--recipe harbor-now", is_image);
    assert_sweep_leaves_nothing(&scene, "--ended --recipe harbor-now");
    assert_eq!(decoys(&scene), ALL_DECOYS);
}

const SERVICES: &str = "
services:
  web: { image: debian-test, command: sleep 100000, init: true, depends_on: [db] }
  db: { image: debian-test, command: sleep 100000, init: true }
";

#[test]
fn a_killed_compose_leaves_nothing_of_its_project() {
    let mut scene = set_up();
    plant_decoys(&mut scene);
    fs::write(scene.path("compose.yaml"), SERVICES).unwrap();
    let projects = ["first", "second", "third"];
    for project in projects {
        let up = start(&scene, &format!("exec docker compose -p {project} up"));
        let instant = any_instant(Duration::from_secs(5));
        println!("docker compose is killed after {instant:?}");
        std::thread::sleep(instant);
        assert_killed(&up.kill());
        let young = ["sweep", "--recipe", "compose", "--apply", "--json"];
        let young = scene.home.creel.run(young).expect_code(0).json();
        assert_eq!(young["gone"], 0, "{young:#}");
        assert_sweep_leaves_nothing(
            &scene,
            &format!("--ended --recipe compose --project {project}"),
        );
    }
    let unnamed = ["sweep", "--recipe", "compose", "--ended", "--apply"];
    let unnamed = scene.home.creel.run(unnamed).expect_code(2);
    assert!(unnamed.stderr.contains("--project"), "{unnamed}");
    assert_eq!(decoys(&scene), ALL_DECOYS);
}

/// A test process whose reaper is switched off: its image cannot be pulled here.
const TEST_PROCESS: &str = "
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
network = Network().create()
for _ in range(3):
    container = DockerContainer('debian-test').with_command('sleep 100000').with_network(network)
    container.with_kwargs(init=True).start()
print('up', flush=True)
import time
time.sleep(1000)
";

#[test]
fn a_killed_test_process_leaves_nothing_of_its_session() {
    let mut scene = set_up();
    plant_decoys(&mut scene);
    fs::write(scene.path("suite.py"), TEST_PROCESS).unwrap();
    let python = part("CREEL_TEST_DOCKER_PY").join("bin/python");
    let script =
        format!("export TESTCONTAINERS_RYUK_DISABLED=true; exec {} suite.py", python.display());
    let suite = start(&scene, &script);
    assert!(eventually(PATIENCE, || suite.stdout().contains("up")), "{}", suite.stderr());
    assert_killed(&suite.kill());
    assert!(scene.left().len() >= 4, "{:#?}", scene.left());
    assert_sweep_leaves_nothing(&scene, "--ended --recipe testcontainers");
    for _ in 0..2 {
        let suite = start(&scene, &script);
        let instant = any_instant(Duration::from_secs(6));
        println!("the test process is killed after {instant:?}");
        std::thread::sleep(instant);
        assert_killed(&suite.kill());
        assert_sweep_leaves_nothing(&scene, "--ended --recipe testcontainers");
    }
    assert_eq!(decoys(&scene), ALL_DECOYS);
}
