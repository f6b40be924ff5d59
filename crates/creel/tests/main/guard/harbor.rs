//! Harbor behind a guard: the same reward, and nothing left when it is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use creel_testkit::creel::Running;
use creel_testkit::wait::{eventually, eventually_some};
use serde_json::Value;

use super::scene::{Scene, part};
use crate::support::{assert_killed, kill};

/// How long a trial may take to begin on a loaded machine; its image is built first.
const PATIENCE: Duration = Duration::from_secs(120);

const TASK: &str = r#"version = "1.0"
[metadata]
[agent]
timeout_sec = 300.0
[verifier]
timeout_sec = 60.0
[environment]
build_timeout_sec = 120.0
cpus = 1
memory_mb = 256
storage_mb = 512
"#;

/// Writes a task whose solution this is.
pub(super) fn write_task(scene: &Scene, name: &str, solution: &str) {
    let write = |file: &str, text: &str| {
        let path = scene.path(&format!("{name}/{file}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("task.toml", TASK);
    write("instruction.md", "Write hello to /app/hello.txt.\n");
    write("environment/Dockerfile", "FROM debian-test\nVOLUME /data\nWORKDIR /app\n");
    write("solution/solve.sh", &format!("#!/bin/bash\n{solution}\n"));
    let test = "#!/bin/bash\nmkdir -p /logs/verifier\n\
        grep -qx hello /app/hello.txt && echo 1 >/logs/verifier/reward.txt \
        || echo 0 >/logs/verifier/reward.txt\n";
    write("tests/test.sh", test);
}

pub(super) fn set_up() -> Scene {
    let mut scene = Scene::set_up();
    scene.add_plugins();
    let debian = part("CREEL_TEST_DEBIAN");
    scene.outside(&format!("docker import {} debian-test >/dev/null", debian.display()));
    scene.home.creel = scene.home.creel.clone().deadline(PATIENCE);
    scene.home.configure("[ledger]\nintent_window = \"2s\"\n");
    scene.remember();
    scene
}

/// Returns the program of the installed Harbor.
pub(super) fn program() -> PathBuf {
    part("CREEL_TEST_HARBOR").join("bin/harbor")
}

/// Returns the command line of one job.
pub(super) fn job(name: &str, task: &str) -> String {
    job_of(&program(), name, task)
}

/// Returns the command line of one job of another copy of Harbor's program.
pub(super) fn job_of(harbor: &Path, name: &str, task: &str) -> String {
    // It would ask the network for the prices of models.
    format!(
        "export LITELLM_LOCAL_MODEL_COST_MAP=True\n\
         exec {} run -p {task} -a oracle -n 1 -o jobs --job-name {name} >{name}.log 2>&1",
        harbor.display()
    )
}

/// Returns what a job came to: its statistics without the random name of its trial.
fn result(scene: &Scene, job: &str) -> (Value, Value, usize) {
    let path = scene.path(&format!("jobs/{job}/result.json"));
    let text = fs::read_to_string(&path);
    let log = fs::read_to_string(scene.path(&format!("{job}.log"))).unwrap_or_default();
    let text = text.unwrap_or_else(|error| panic!("{}: {error}\n{log}", path.display()));
    let result: Value = serde_json::from_str(&text).unwrap();
    let eval = &result["stats"]["evals"]["oracle__adhoc"];
    let rewarded = eval["reward_stats"]["reward"]["1.0"].as_array().map_or(0, Vec::len);
    (result["stats"]["n_completed_trials"].clone(), eval["metrics"][0]["mean"].clone(), rewarded)
}

#[test]
fn a_trial_has_the_same_reward() {
    let scene = set_up();
    write_task(&scene, "task", "echo hello >/app/hello.txt");
    // Both at once: each takes ten seconds to stop a container that does not listen.
    thread::scope(|scope| {
        let direct = scope.spawn(|| {
            scene.shell().deadline(PATIENCE).run(["-c", &format!("cd\n{}", job("direct", "task"))])
        });
        scene.guarded(&job("guarded", "task")).expect_code(0);
        direct.join().unwrap().expect_code(0);
    });
    assert_eq!(result(&scene, "guarded"), (1.into(), 1.0.into(), 1));
    assert_eq!(result(&scene, "direct"), result(&scene, "guarded"));
    // Harbor itself leaves the volume of its container behind; behind a guard it goes.
    let left = scene.left();
    assert!(left.iter().all(|line| line.starts_with("Volume")) && left.len() <= 1, "{left:#?}");
    assert!(scene.home.open_records().is_empty(), "{:#?}", scene.home.open_records());
}

/// Starts a job whose solution never ends, and waits until it is under way; returns the guard
/// and the harness's pid.
fn begin(scene: &Scene, name: &str) -> (Running, i32) {
    write_task(scene, name, "touch /app/begun; sleep 100000");
    let pid = scene.path(&format!("{name}.pid"));
    let script = format!("echo $$ >{}\n{}", pid.display(), job(name, name));
    let guard = scene.start(&[], &script);
    await_begun(scene, name, &guard);
    let pid = eventually_some(PATIENCE, || fs::read_to_string(&pid).ok()?.trim().parse().ok());
    (guard, pid.unwrap())
}

/// Waits until the solution of a job runs.
#[track_caller]
pub(super) fn await_begun(scene: &Scene, name: &str, started: &Running) {
    let begun = eventually(PATIENCE, || {
        let script = format!(
            "for id in $(docker ps -q --filter name={name}); do docker exec $id test -e /app/begun && echo yes; done"
        );
        scene.direct(&script).stdout.contains("yes")
    });
    let log = fs::read_to_string(scene.path(&format!("{name}.log"))).unwrap_or_default();
    assert!(begun, "the trial does not begin\n{log}\n{}", started.stderr());
}

#[test]
fn a_harness_that_is_killed_leaves_nothing() {
    let scene = set_up();
    let (guard, harness) = begin(&scene, "killed");
    kill(harness);
    guard.wait().expect_code(137);
    scene.assert_nothing_left();

    let (guard, _) = begin(&scene, "orphaned");
    assert_killed(&guard.kill());
    let given_back = eventually(PATIENCE, || scene.home.open_records().is_empty());
    assert!(given_back, "{:#?}", scene.home.open_records());
    scene.assert_nothing_left();
}
