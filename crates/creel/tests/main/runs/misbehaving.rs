//! Runs whose sandbox misbehaves: it fills its disk, freezes itself, or stops all its processes;
//! and sandboxes that another process has replaced.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use creel_model::crashpoint::Crashpoint;
use creel_process::disk_refusal;
use creel_testkit::wait::eventually;
use serde_json::Value;

use crate::support::PATIENCE;

use super::run_fixture::{RunFixture, TestRun, agent, processes_of, unique_sleep};
use super::workflow_fixture::WorkflowFixture;

/// How long after its limit a run may end on a loaded machine. This is less than the grace period
/// of an agent that does not respond.
const SLACK: Duration = Duration::from_secs(8);
const WALL: Duration = Duration::from_secs(5);

/// Freezes its own control groups, in either version.
const FREEZE: &str = r#"
    while IFS=: read -r id names path; do
        for mount in /sys/fs/cgroup/freezer /sys/fs/cgroup/unified /sys/fs/cgroup; do
            case "$path" in
            */creel-*)
                test "$names" = freezer && echo FROZEN > "$mount$path/freezer.state"
                test -z "$names" && echo 1 > "$mount$path/cgroup.freeze"
            ;;
            esac
        done
    done < /proc/self/cgroup 2>/dev/null
"#;

/// Runs an agent that blocks itself, and asserts that its limit acts in time.
fn assert_ends_in_time(blocking_script: &str) {
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.plant("limited");
    let sleep = unique_sleep();
    let script = format!("echo one; {blocking_script}\n{sleep}");
    let body = format!("{}[limits]\nwall = \"{}s\"\n", agent(&script), WALL.as_secs());
    let started_at = Instant::now();
    let report = fixture.run(5, &body);
    let took = started_at.elapsed();
    assert_eq!(report["cause"]["class"], "budget_exceeded", "{report:#}");
    assert_eq!(report["certificate"]["verified"], true, "{report:#}");
    assert!(took < WALL + SLACK, "the run took {took:?}");
    assert!(processes_of(&sleep).is_empty());
    fixture.assert_nothing_left();
    fixture.assert_foreign_untouched();
}

#[test]
fn a_run_that_freezes_its_own_control_group_ends_at_its_limit() {
    assert_ends_in_time(FREEZE);
}

#[test]
fn a_run_that_refreezes_itself_ends_at_its_limit() {
    assert_ends_in_time(&format!("while :; do {FREEZE} done"));
}

#[test]
fn a_run_that_stops_all_its_processes_ends_at_its_limit() {
    // In its own pid namespace these are all processes; elsewhere they are its own.
    assert_ends_in_time("kill -STOP $PPID $$");
}

#[test]
fn a_run_frozen_from_outside_is_cancelled_at_once() {
    let fixture = RunFixture::set(creel_process::NAME);
    let sleep = unique_sleep();
    let mut test_run = fixture.start("10m", &agent(&format!("echo one; {sleep}")));
    assert!(eventually(PATIENCE, || !processes_of(&sleep).is_empty()), "{}", test_run.output());
    test_run.freeze_sandbox();
    let started_at = Instant::now();
    fixture.home.creel.run(["cancel", &test_run.run]);
    let ended = test_run.driver.take().expect("it is driven here").wait();
    assert_eq!(ended.code(), Some(6), "{ended}");
    assert!(started_at.elapsed() < SLACK, "{:?}", started_at.elapsed());
    assert!(processes_of(&sleep).is_empty());
    fixture.assert_nothing_left();
}

/// Starts a run in a container, and pauses the container.
fn start_paused<'a>(fixture: &'a RunFixture, limits: &str) -> TestRun<'a> {
    let sleep = unique_sleep();
    let body = format!("{}{limits}", agent(&format!("echo one; {sleep}")));
    let test_run = fixture.start("10m", &body);
    assert!(eventually(PATIENCE, || !processes_of(&sleep).is_empty()), "{}", test_run.output());
    // The driver records it only when no request of its own is under way in the container.
    let is_started = |events: Vec<serde_json::Value>| {
        events.iter().any(|event| event["event"] == "turn_started")
    };
    assert!(eventually(PATIENCE, || is_started(test_run.events())), "{}", test_run.output());
    test_run.pause_container();
    test_run
}

#[test]
fn a_run_in_a_paused_container_ends_at_its_limit() {
    let mut fixture = RunFixture::set(creel_docker::NAME);
    fixture.plant("paused.limit");
    let test_run = start_paused(&fixture, "[limits]\nwall = \"15s\"\n");
    let started_at = Instant::now();
    let report = test_run.conclude(5);
    assert_eq!(report["cause"]["class"], "budget_exceeded", "{report:#}");
    assert_eq!(report["certificate"]["verified"], true, "{report:#}");
    assert!(started_at.elapsed() < Duration::from_secs(15) + SLACK, "{:?}", started_at.elapsed());
    fixture.assert_nothing_left();
    fixture.assert_foreign_untouched();
}

#[test]
fn a_run_in_a_paused_container_is_cancelled() {
    let mut fixture = RunFixture::set(creel_docker::NAME);
    fixture.plant("paused.cancel");
    let mut test_run = start_paused(&fixture, "");
    let started_at = Instant::now();
    fixture.home.creel.run(["cancel", &test_run.run]).expect_code(0);
    let ended = test_run.driver.take().expect("it is driven here").wait();
    assert_eq!(ended.code(), Some(6), "{ended}");
    assert!(started_at.elapsed() < SLACK, "{:?}\n{ended}", started_at.elapsed());
    fixture.assert_nothing_left();
    fixture.assert_foreign_untouched();
}

#[test]
fn a_run_that_fills_its_disk_ends_with_its_outcome_and_leaves_nothing() {
    let fixture = WorkflowFixture::new();
    let tables = |script: &str| {
        format!(
            "[sandbox]\ndisk = \"64m\"\n[runtime]\nkind = \"command\"\n\
             command = [\"sh\", \"-c\", '''touch {}; {script}''']\n",
            fixture.mark().display()
        )
    };
    if let Some(reason) = disk_refusal() {
        let path = fixture.write(&tables("true"));
        let refused = fixture.home.creel.run(["run", "--check", &path.display().to_string()]);
        assert!(refused.expect_code(2).stderr.contains(&reason));
        return;
    }
    let fill = "head -c 200m /dev/zero > filling; echo code $?; echo more > more; echo code $?; \
                df -k . | tail -1; for i in 1 2 3; do echo words $i; done";
    let ended = fixture.run(&tables(fill));
    fixture.assert_succeeded(&ended);
    let text = ended.text();
    assert!(text.contains("No space left on device"), "{text}");
    assert!(text.contains("code 1") && text.contains("words 3"), "{text}");
    assert_eq!(disks_below(&fixture), Vec::<String>::new());

    let ended = fixture.run(&tables(&format!("{fill}; exit 3")));
    assert_eq!(ended.output.code(), Some(5), "{}", ended.output);
    assert_eq!(ended.report["certificate"]["verified"], true, "{}", ended.output);
    assert_eq!(disks_below(&fixture), Vec::<String>::new());
}

#[test]
fn a_killed_run_with_a_disk_leaves_nothing() {
    if disk_refusal().is_some() {
        return;
    }
    let mut fixture = RunFixture::set(creel_process::NAME);
    fixture.sandbox = "disk = \"64m\"\n".to_owned();
    let sleep = unique_sleep();
    let mut test_run = fixture.start("10m", &agent(&format!("echo one; {sleep}")));
    assert!(eventually(PATIENCE, || !processes_of(&sleep).is_empty()), "{}", test_run.output());
    test_run.kill_driver();
    fixture.home.await_quiet();
    assert!(processes_of(&sleep).is_empty());
    fixture.assert_nothing_left();
    let state = fixture.home.creel.state().display().to_string();
    assert_eq!(traces_of(&state), Vec::<String>::new());
}

#[test]
fn a_crash_at_every_step_of_a_disk_is_reclaimed() {
    if disk_refusal().is_some() {
        return;
    }
    let later = [Crashpoint::CreateSent, Crashpoint::CreatedNotRecorded];
    let points = Crashpoint::OF_DIRECTORIES.into_iter().chain(Crashpoint::OF_DISKS).chain(later);
    for point in points {
        let mut fixture = RunFixture::set(creel_process::NAME);
        fixture.sandbox = "disk = \"64m\"\n".to_owned();
        let creel = fixture.home.creel.clone().env("CREEL_CRASHPOINT", point.name());
        let path = fixture.workflow("10m", &agent("echo one"));
        let died = creel.run(["run".as_ref(), path.as_os_str()]);
        crate::support::assert_killed(&died);
        fixture.home.await_quiet();
        let state = fixture.home.creel.state().display().to_string();
        let gone = eventually(PATIENCE, || {
            fixture.home.creel.run(["reconcile"]);
            fixture.home.open_records().is_empty()
        });
        assert!(gone, "{}: {:#?}", point.name(), fixture.home.open_records());
        assert_eq!(traces_of(&state), Vec::<String>::new(), "{}", point.name());
        fixture.assert_nothing_left();
    }
}

/// Runs a workflow that fails, and replaces its kept sandbox by a foreign directory.
fn replaced_sandbox(fixture: &WorkflowFixture, keep: &str) -> PathBuf {
    let keep =
        format!("[[setup]]\nname = \"fail\"\nrun = \"exit 1\"\n[on_failure]\nkeep = \"{keep}\"\n");
    let ended = fixture.run(&keep);
    ended.assert_cause("bootstrap_failed", "setup fail");
    let sandbox = fixture.sandbox();
    fs::remove_dir_all(&sandbox).unwrap();
    fs::create_dir(&sandbox).unwrap();
    fs::write(sandbox.join("kept"), "kept").unwrap();
    sandbox
}

#[test]
fn a_sandbox_recreated_by_another_user_survives_rm_and_reconcile() {
    let fixture = WorkflowFixture::new();
    let sandbox = replaced_sandbox(&fixture, "10m");
    let records = fixture.home.open_records();
    let named = records.iter().map(|record| record["resource"].as_str().unwrap());
    let args: Vec<&str> = ["rm", "--force"].into_iter().chain(named).collect();
    let output = fixture.home.creel.run(args);
    assert!(format!("{output}").contains("kept"), "{output}");
    assert_eq!(fs::read_to_string(sandbox.join("kept")).unwrap(), "kept");
    assert_eq!(fixture.home.open_records(), Vec::<Value>::new());
    fixture.home.creel.run(["reconcile"]).expect_code(0);
    assert_eq!(fs::read_to_string(sandbox.join("kept")).unwrap(), "kept");

    let fixture = WorkflowFixture::new();
    let sandbox = replaced_sandbox(&fixture, "2s");
    let closed = eventually(PATIENCE, || {
        fixture.home.creel.run(["reconcile"]);
        fixture.home.open_records().is_empty()
    });
    assert!(closed, "{:#?}", fixture.home.open_records());
    assert_eq!(fs::read_to_string(sandbox.join("kept")).unwrap(), "kept");
}

#[test]
fn an_invalid_disk_size_is_refused_before_anything_is_created() {
    let fixture = WorkflowFixture::new();
    for (size, why) in [("1m", "at least 16m"), ("soon", "is not a size"), ("0g", "nothing")] {
        let path = fixture.write(&format!("[sandbox]\ndisk = \"{size}\"\n"));
        let refused = fixture.home.creel.run(["run", "--check", &path.display().to_string()]);
        let refused = refused.expect_code(2);
        assert!(refused.stderr.contains("sandbox.disk"), "{refused}");
        assert!(refused.stderr.contains(why), "{refused}");
    }
}

#[test]
fn a_workspace_in_creels_own_directory_is_refused() {
    let fixture = WorkflowFixture::new();
    for tables in [
        "[workspace]\npath = \".creel\"\n",
        "[workspace]\npath = \".creel/spool\"\n",
        "[workspace]\npath = \"work/.creel\"\n",
        "[workspace.files]\n\".creel/hold.sock\" = \"text\"\n",
        "[[workspace.repositories]]\nurl = \"https://example.org/a.git\"\npath = \".creel\"\n",
        "[sandbox]\nprovider = \"docker\"\nimage = \"debian:12\"\n[workspace]\npath = \"/.creel\"\n",
    ] {
        let path = fixture.write(tables);
        let refused = fixture.home.creel.run(["run", "--check", &path.display().to_string()]);
        let refused = refused.expect_code(2);
        assert!(refused.stderr.contains("creel's own directory"), "{tables}{refused}");
    }
}

fn disks_below(fixture: &WorkflowFixture) -> Vec<String> {
    traces_of(&fixture.home.creel.state().display().to_string())
}

/// Returns the mounts and loop devices that refer to a directory.
fn traces_of(directory: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut found: Vec<String> =
        mounts.lines().filter(|line| line.contains(directory)).map(str::to_owned).collect();
    for device in fs::read_dir("/sys/block").unwrap() {
        let file = device.unwrap().path().join("loop/backing_file");
        found.extend(fs::read_to_string(file).ok().filter(|text| text.contains(directory)));
    }
    found
}
