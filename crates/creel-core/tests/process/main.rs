//! The process provider against the real kernel.
//!
//! A holder is a re-exec of this very program, so this binary has a `main` of
//! its own that tells its parts apart: `holder` holds a tree, `supervisor`
//! makes one and dies, everything else runs the tests whose names contain one
//! of the given words.

mod bench;
mod directories;
mod runner;
mod trees;

use std::process::ExitCode;

use creel_core::provider::process::holder;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["holder", _resource] => match holder::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        ["supervisor", root, resource, point] => bench::supervise_and_die(root, resource, point),
        _ => runner::run(&[trees::ALL, directories::ALL].concat(), &words),
    }
}
