//! `acknowledge` and `poke`: short messages from the supervisor.

use std::fs;
use std::process::ExitCode;

use super::arguments::Arguments;
use super::directory::BridgeDirectory;
use super::error::BridgeError;
use super::spool::Segment;

/// Records that the supervisor has all events up to `--to`, and removes segments no longer needed.
///
/// The last segment always stays, because a restarted bridge continues there.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let directory = BridgeDirectory::new(arguments.needed_path("directory")?);
    let to = arguments.needed_number("to")?.max(directory.acknowledged());
    directory.acknowledge(to).map_err(BridgeError::of("keep the acknowledgement"))?;
    let segments = Segment::all(&directory.spool()).map_err(BridgeError::of("list the spool"))?;
    for pair in segments.windows(2) {
        if pair[1].first <= to.saturating_add(1) {
            // Another process may have removed it first. The next acknowledgement tries again.
            let _ = fs::remove_file(&pair[0].path);
        }
    }
    directory.leave_sign().map_err(BridgeError::of("leave a sign"))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the bridge check for commands now.
pub(crate) fn poke(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let directory = BridgeDirectory::new(arguments.needed_path("directory")?);
    directory.leave_sign().map_err(BridgeError::of("leave a sign"))?;
    Ok(ExitCode::SUCCESS)
}
