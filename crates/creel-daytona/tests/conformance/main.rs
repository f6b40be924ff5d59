//! The Daytona provider passes the suite of all providers, on the local server.
//!
//! The server's sandboxes are process trees, whose holder is a re-exec of this very program.
#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

mod subject;

use std::process::ExitCode;

use creel_testkit::conformance;

fn main() -> ExitCode {
    let is_holder = std::env::args().nth(1).is_some_and(|first| first == "holder");
    if is_holder {
        return match creel_process::holder::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    conformance::run::<subject::DaytonaSubject>()
}
