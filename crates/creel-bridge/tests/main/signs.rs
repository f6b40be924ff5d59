//! Signs of life: a command whose orderer is only known by a file that changes.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use creel_bridge::exec::Ending;

use crate::support::{Told, is_alive, line, pid_in, program, script};

/// Starts a command that would run for ever, watched by a sign that may rest for so long.
fn begin(home: &Path, patience_ms: u64) -> (Child, u32) {
    let (order, sign, pid) = (home.join("order"), home.join("sign"), home.join("pid"));
    let endless = format!("echo $$ > {}; exec sleep 1000", pid.display());
    fs::write(&order, line(&script(&endless))).unwrap();
    fs::write(&sign, "0").unwrap();
    let child = program(&["exec", "--order", order.to_str().unwrap()])
        .args(["--while-file", sign.to_str().unwrap()])
        .args(["--while-ms", &patience_ms.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (child, pid_in(&pid))
}

fn assert_killed(mut child: Child, command: u32) {
    let told = Told::read(child.stdout.take().unwrap());
    assert_eq!(told.ending(), Ending::Signal { signal: 9 });
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
    while begun.elapsed() < Duration::from_secs(5) {
        fs::write(home.path().join("sign"), format!("{:?}", begun.elapsed())).unwrap();
        assert!(is_alive(command), "it died after {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_killed(child, command);
}

#[test]
fn a_command_without_a_sign_from_the_beginning_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let order = home.path().join("order");
    fs::write(&order, line(&script("sleep 1000"))).unwrap();
    let output = program(&["exec", "--order", order.to_str().unwrap()])
        .args(["--while-file", home.path().join("none").to_str().unwrap(), "--while-ms", "600000"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = Told::read(output.stdout.as_slice());
    assert_eq!(told.ending(), Ending::Signal { signal: 9 });
}
