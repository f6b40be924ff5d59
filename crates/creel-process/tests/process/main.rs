//! The process provider against the real kernel.
//!
//! A holder is a re-exec of this very program, so this binary has its own
//! `main`, which selects a role: `holder` holds a tree, `supervisor`
//! creates one and dies, and everything else runs the tests, with the flags that
//! every Rust test program accepts.
#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

mod directories;
mod disks;
mod fixture;
mod frozen;
mod replaced;
mod runner;
mod trees;

use std::process::ExitCode;

use creel_process::holder;
use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["holder", _resource] => match holder::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        ["supervisor", root, resource, point] => fixture::supervise_and_die(root, resource, point),
        _ => run_tests(),
    }
}

fn run_tests() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // More tests at once would exceed the deadlines of single tests.
    arguments.test_threads = arguments.test_threads.or(Some(4));
    let tests = [trees::ALL, directories::ALL, replaced::ALL, frozen::ALL, disks::ALL].concat();
    let tests = tests.into_iter().map(runner::trial).collect();
    libtest_mimic::run(&arguments, tests).exit_code()
}
