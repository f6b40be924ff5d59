//! `creel-bridge`: the small static program in every sandbox.
//!
//! Its commands are listed in the library of this crate, with what they speak.
//! Everything it says to people is one sentence on the standard error.
//!
//! | exit code | what it means |
//! |---|---|
//! | 0 | done; for `exec` and `serve`: the last frame says how it went |
//! | 1 | it could not be done, or whoever wanted it is gone |
//! | 2 | the command line or the order makes no sense |
//! | 3 | for `hold`: the lease was not renewed |

mod program;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match program::run(std::env::args_os().skip(1)) {
        Ok(code) => code,
        Err(failure) => {
            // Whoever closed the standard error does not want to know.
            let _ = writeln!(std::io::stderr(), "creel-bridge: {failure}");
            failure.exit_code()
        }
    }
}
