//! `acknowledge` and `poke`: short signs of the supervisor.

use std::fs;
use std::process::ExitCode;

use super::arguments::Arguments;
use super::directory::Directory;
use super::failure::Failure;
use super::spool::Segment;

/// Keeps that the supervisor has all events up to `--to`, and removes what is not needed then.
///
/// The last segment stays, whatever is in it: a bridge that comes back goes on there.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let directory = Directory::new(arguments.needed_path("directory")?);
    let to = arguments.needed_number("to")?.max(directory.acknowledged());
    directory.acknowledge(to).map_err(Failure::of("keep the acknowledgement"))?;
    let segments = Segment::all(&directory.spool()).map_err(Failure::of("list the spool"))?;
    for pair in segments.windows(2) {
        if pair[1].first <= to.saturating_add(1) {
            // Somebody else may have been faster, and the next acknowledgement tries again.
            let _ = fs::remove_file(&pair[0].path);
        }
    }
    directory.leave_sign().map_err(Failure::of("leave a sign"))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the bridge look at its commands now.
pub(crate) fn poke(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let directory = Directory::new(arguments.needed_path("directory")?);
    directory.leave_sign().map_err(Failure::of("leave a sign"))?;
    Ok(ExitCode::SUCCESS)
}
