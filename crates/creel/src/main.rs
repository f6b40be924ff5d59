//! creel: every agent run ends with a known outcome, and everything it created is released.
//!
//! This crate is the command line. It reads the environment, opens the ledger and the providers,
//! calls the libraries, prints, and maps the result to an exit code. Everything that does not depend
//! on a terminal is in `creel-core`, `creel-run` and `creel-guard`.

mod app;
mod backends;
mod bridge;
mod cli;
mod environment;
mod output;
mod shutdown;

use std::process::ExitCode;

use clap::Parser;

use cli::Cli;
use output::{Exit, Failure, Global, Printer};

fn main() -> ExitCode {
    // The holder must run before any thread exists, so it never reaches the runtime.
    if cli::holder::is_requested(std::env::args_os()) {
        return cli::holder::run();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(&error),
    };
    let printer = Printer::new(&cli.global);
    output::log::start(&cli.global, environment::log_filter());
    let runtime = match cli.runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Failure::internal("cannot start the runtime", &error);
            return output::fail(&printer, &failure);
        }
    };
    let result = runtime.block_on(cli::run(cli, &printer));
    // Optional background work may still be under way; the ledger covers what it does not finish.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    match result {
        // A reader must not mistake partial output for the whole.
        Ok(_) if let Some(error) = printer.lost() => {
            output::fail(&printer, &Failure::internal("the output could not be written", error))
        }
        Ok(exit) => exit.into(),
        Err(failure) => output::fail(&printer, &failure),
    }
}

/// Returns the exit code for a parse error: help and version are not errors, the rest is wrong
/// usage.
fn usage_error(error: &clap::Error) -> ExitCode {
    if let Some(failure) = Failure::of_parser(error) {
        // The flag counts even if the rest of the command line is invalid.
        let json = std::env::args_os().any(|arg| arg == "--json");
        return output::fail(&Printer::new(&Global { json, ..Global::default() }), &failure);
    }
    // If the pipe is closed, the error cannot be reported either.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() }
}
