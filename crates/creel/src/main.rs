//! creel: every agent run ends with a known outcome, and everything it took is given back.
//!
//! This crate is the command line. It reads the environment, opens ledger and
//! providers, calls `creel-core`, prints, and maps the result to an exit code.
//! Everything that is true without a terminal lives in `creel-core`.

mod app;
mod bridge;
mod cli;
mod dotenv;
mod environment;
mod output;
mod shutdown;

use std::process::ExitCode;

use clap::Parser;

use cli::Cli;
use output::{Exit, Failure, Global, Printer};

fn main() -> ExitCode {
    // The holder must run before any thread exists, so it never reaches the runtime.
    if cli::holder::is_meant(std::env::args_os()) {
        return cli::holder::run();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(&error),
    };
    let printer = Printer::new(&cli.global);
    output::log::start(&cli.global);
    let runtime = match cli.runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Failure::internal("cannot start the runtime", &error);
            return output::fail(&printer, &failure);
        }
    };
    let result = runtime.block_on(cli::run(cli, &printer));
    // Background courtesies may still be under way; the ledger covers what they do not finish.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    match result {
        // Who reads the output must not take a part of it for the whole.
        Ok(_) if let Some(error) = printer.lost() => {
            output::fail(&printer, &Failure::internal("the output could not be written", error))
        }
        Ok(exit) => exit.into(),
        Err(failure) => output::fail(&printer, &failure),
    }
}

/// Help and version are no errors; everything else the parser refuses is wrong usage.
fn usage_error(error: &clap::Error) -> ExitCode {
    if let Some(failure) = Failure::of_parser(error) {
        // The flag counts even where the rest of the line makes no sense.
        let json = std::env::args_os().any(|word| word == "--json");
        return output::fail(&Printer::new(&Global { json, ..Global::default() }), &failure);
    }
    // A closed pipe cannot be told about itself.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() }
}
