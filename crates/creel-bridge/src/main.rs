//! `creel-bridge`: the small static program in every sandbox.
//!
//! The library of this crate lists its commands and their protocol. Messages for people are one
//! sentence on standard error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done; for `exec` and `serve`, the last frame carries the result |
//! | 1 | it could not be done, or the caller is gone |
//! | 2 | the command line or the request is invalid |
//! | 3 | for `hold`: the lease was not renewed |

mod program;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match program::run(std::env::args_os().skip(1)) {
        Ok(code) => code,
        Err(failure) => {
            // Standard error may be closed; there is no other place to report to.
            let _ = writeln!(std::io::stderr(), "creel-bridge: {failure}");
            failure.exit_code()
        }
    }
}
