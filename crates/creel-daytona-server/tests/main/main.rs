//! Tests of the local Daytona server, by its own promises and with the official SDKs.
//!
//! Process sandboxes need a holder, which is a re-exec of this very program. So this binary has its
//! own `main`, which selects a role: `holder` holds a tree, `serve` is a server that a test kills,
//! and everything else runs the tests.

mod client;
mod docker;
mod faults;
mod fixture;
mod leftovers;
mod lifecycle;
mod limits;
mod listing;
mod runner;
mod sdk;
mod service;
mod timers;
mod toolbox;

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
        ["serve", home] => fixture::serve_until_killed(home),
        _ => run_tests(),
    }
}

fn run_tests() -> ExitCode {
    let all = [
        sdk::ALL,
        service::ALL,
        leftovers::ALL,
        docker::ALL,
        toolbox::ALL,
        faults::ALL,
        lifecycle::ALL,
        limits::ALL,
        listing::ALL,
        timers::ALL,
    ];
    let trials = all.concat().into_iter().map(runner::trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
