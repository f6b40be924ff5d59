//! A virtual machine: control groups of version 2 only, and a power cut.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use creel_testkit::machine::{Booted, Machine};

/// An emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(900);
const SCRIPT: &str = include_str!("machine.sh");
/// The prefix of the script's findings.
const SAYS: &str = "machine: ";

/// Builds the tests of the process provider, and returns their path.
fn process_tests() -> PathBuf {
    let cargo = env::var("CARGO").unwrap();
    let output = Command::new(cargo)
        .args(["test", "--package", "creel-process", "--test", "process", "--no-run"])
        .args(["--message-format", "json"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut executables = text.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    executables.next_back().expect("the tests of the process provider can be built")
}

#[test]
fn version_2_alone_and_a_power_cut_change_nothing_about_the_promise() {
    let kernel = env::var_os("CREEL_TEST_KERNEL").expect("cargo xtask torture sets the kernel");
    let machine = Machine::make(kernel.as_ref(), SCRIPT).unwrap();
    let tests = process_tests();
    let variables = |phase| {
        [
            ("phase", phase),
            ("creel", env!("CARGO_BIN_EXE_creel")),
            ("process_tests", tests.to_str().unwrap()),
        ]
    };
    let print_findings = |machine: &Booted| {
        for line in machine.lines(SAYS) {
            println!("report: {line}");
        }
    };

    let mut first = machine.boot(&variables("first")).unwrap();
    first.wait_for("machine: held", PATIENCE).unwrap();
    print_findings(&first);
    first.cut_power();

    let mut second = machine.boot(&variables("second")).unwrap();
    second.wait_for("machine: decoys", PATIENCE).unwrap();
    print_findings(&second);
}
