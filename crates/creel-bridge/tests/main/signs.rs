//! Signs of life: a command whose caller is known only by a file that changes.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use creel_bridge::exec::ExecEnding;

use crate::support::{ExecReport, is_alive, line, pid_in, program, script, throughout};

/// Starts an endless command, watched by a sign that may stay unchanged for this long.
fn begin(home: &Path, patience_ms: u64) -> (Child, u32) {
    let (request, sign, pid) = (home.join("request"), home.join("sign"), home.join("pid"));
    let endless = format!("echo $$ > {}; exec sleep 1000", pid.display());
    fs::write(&request, line(&script(&endless))).unwrap();
    fs::write(&sign, "0").unwrap();
    let child = program(&["exec", "--order", request.to_str().unwrap()])
        .args(["--while-file", sign.to_str().unwrap()])
        .args(["--while-ms", &patience_ms.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (child, pid_in(&pid))
}

fn assert_killed(mut child: Child, command: u32) {
    let report = ExecReport::read(child.stdout.take().unwrap());
    assert_eq!(report.ending(), ExecEnding::Signal { signal: 9 });
    child.wait().unwrap();
    assert!(!is_alive(command));
}

#[test]
fn a_command_whose_sign_is_gone_is_killed_at_once() {
    let home = tempfile::tempdir().unwrap();
    let (child, command) = begin(home.path(), 600_000);
    fs::remove_file(home.path().join("sign")).unwrap();
    assert_killed(child, command);
}

#[test]
fn a_command_lives_as_long_as_its_sign_changes() {
    let home = tempfile::tempdir().unwrap();
    let (child, command) = begin(home.path(), 2_000);
    let begun = Instant::now();
    throughout("the sign keeps it alive", Duration::from_secs(5), || {
        fs::write(home.path().join("sign"), format!("{:?}", begun.elapsed())).unwrap();
        is_alive(command)
    });
    assert_killed(child, command);
}

#[test]
fn a_command_without_a_sign_from_the_beginning_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let request = home.path().join("request");
    fs::write(&request, line(&script("sleep 1000"))).unwrap();
    let output = program(&["exec", "--order", request.to_str().unwrap()])
        .args(["--while-file", home.path().join("none").to_str().unwrap(), "--while-ms", "600000"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report = ExecReport::read(output.stdout.as_slice());
    assert_eq!(report.ending(), ExecEnding::Signal { signal: 9 });
}
