//! What still uses a container spares it: a command that a client waits for inside, and a program
//! that works in a directory that is mounted into it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use creel_testkit::image;
use creel_testkit::wait::{eventually, eventually_some};

use crate::support::Ending;

use super::fixture::{reason, results};
use super::recipes::{HarnessFixture, PATIENCE, TRIAL};

/// A trial that nothing uses.
const FINISHED: &str = "finished__ab3de7f__env";

/// Opens a file of a directory and stays, as a harness does that reads the results of its trial.
const READER: &str = "import sys, time
log = open(sys.argv[1], 'w')
print('opened', flush=True)
time.sleep(1000)
";

/// Returns the name of a trial's container.
fn container_of(trial: &str) -> String {
    format!("{trial}-main-1")
}

/// Starts the container of a trial as Compose does, with more flags of `docker run`.
fn start(fixture: &HarnessFixture, trial: &str, flags: &str) {
    let label = |key: &str, value: &str| format!("--label com.docker.compose.{key}={value}");
    let script = format!(
        "docker run -d --init --name {} {} {} {} {} {flags} {} sleep 100000",
        container_of(trial),
        label("project", trial),
        label("service", "main"),
        label("container-number", "1"),
        label("oneoff", "False"),
        image::REFERENCE,
    );
    let output = fixture.shell(&script);
    assert!(output.status.success(), "{output:?}");
}

/// Returns why a trial's container is spared, once it is old enough.
fn reason_to_spare(fixture: &HarnessFixture, trial: &str) -> String {
    let name = container_of(trial);
    let why = eventually_some(PATIENCE, || {
        Some(reason(&fixture.sweep("harbor"), &name)).filter(|why| !why.contains("less than"))
    });
    why.unwrap_or_else(|| panic!("{name} stays young: {}", fixture.sweep("harbor")))
}

/// Checks that a sweep takes the finished trial and leaves the one in use; after the end of its
/// use it is taken too.
#[track_caller]
fn assert_spared_until(fixture: HarnessFixture, user: Ending) {
    let container = |trial: &str| format!("container {}", container_of(trial));
    let await_planned = |trial: &str| {
        let is_planned = || results(&fixture.sweep("harbor"), "planned") == [container(trial)];
        assert!(eventually(PATIENCE, is_planned), "{}", fixture.sweep("harbor"));
    };
    await_planned(FINISHED);
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone"), [container(FINISHED)], "{swept}");
    let there = fixture.docker().inspect_container(&container_of(TRIAL)).unwrap().unwrap();
    assert_eq!(there["State"]["Running"], true, "{there}");
    drop(user);
    await_planned(TRIAL);
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone"), [container(TRIAL)], "{swept}");
    fixture.stop();
}

/// Waits for the first line that a program prints.
fn await_line(user: &mut Ending, expected: &str) {
    let mut line = String::new();
    let stdout = user.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), expected);
}

#[test]
fn a_container_with_an_open_exec_session_is_spared() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    start(&fixture, TRIAL, "");
    start(&fixture, FINISHED, "");
    // The shell inside ends with its input, and so with the client.
    let client = Command::new("docker")
        .args(["exec", "-i", &container_of(TRIAL), "sh", "-c", "echo inside; cat"])
        .env("DOCKER_HOST", fixture.cli.engine().host())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut client = Ending(client.unwrap());
    await_line(&mut client, "inside");
    let why = reason_to_spare(&fixture, TRIAL);
    // An engine does not say which of its clients waits for the command.
    assert!(why.starts_with("a command runs inside, and process "), "{why}");
    assert!(why.ends_with("is connected to the engine"), "{why}");
    assert_spared_until(fixture, client);
}

#[test]
fn a_container_whose_mounted_directory_a_live_program_uses_is_spared() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    let (job, other) = (fixture.cli.path("job"), fixture.cli.path("other"));
    [&job, &other].iter().for_each(|path| fs::create_dir(path).unwrap());
    let (script, log) = (fixture.cli.path("reader.py"), job.join("trial.log"));
    fs::write(&script, READER).unwrap();
    // It began before the trial, as whatever started the trial did.
    let reader = Command::new("python3").arg(&script).arg(&log).stdout(Stdio::piped()).spawn();
    let mut reader = Ending(reader.unwrap());
    await_line(&mut reader, "opened");
    start(&fixture, TRIAL, &format!("-v {}:/job", job.display()));
    start(&fixture, FINISHED, &format!("-v {}:/job", other.display()));
    let why = reason_to_spare(&fixture, TRIAL);
    assert!(why.contains(&format!("process {} (program python", reader.0.id())), "{why}");
    assert!(why.contains(&format!("uses {}, which is its directory", log.display())), "{why}");
    assert_spared_until(fixture, reader);
}
