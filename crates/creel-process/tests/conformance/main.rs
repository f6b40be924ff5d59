//! The process provider passes the suite of all providers.
#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

#[path = "../process/fixture.rs"]
#[expect(dead_code, unused_imports, reason = "the other tests of this provider use all of it")]
mod fixture;
#[path = "../process/requests.rs"]
mod requests;
mod subject;

use std::process::ExitCode;

use creel_testkit::conformance;

fn main() -> ExitCode {
    conformance::run::<subject::ProcessSubject>()
}
