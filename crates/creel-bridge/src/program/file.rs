//! `put` and `get`: files in and out, see [`creel_bridge::file`].

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;

use creel_bridge::file::{self, FileError};

use super::arguments::Arguments;
use super::error::BridgeError;

/// The size of the read buffer.
const BUFFER_SIZE: usize = 64 << 10;

/// Writes the standard input to a file.
pub(super) fn put(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let path = arguments.needed_path("path")?;
    let mode = arguments.needed_text("mode")?;
    let mode = u32::from_str_radix(mode, 8)
        .map_err(|_| BridgeError::Usage(format!("--mode is no octal number: {mode}")))?;
    let content = BufReader::with_capacity(BUFFER_SIZE, io::stdin());
    Ok(verdict_on(&path, file::put(&path, mode, content)))
}

/// Writes a file to the standard output.
pub(super) fn get(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let path = arguments.needed_path("path")?;
    let most = arguments.needed_number("most")?;
    Ok(verdict_on(&path, file::get(&path, most, io::stdout())))
}

fn verdict_on(path: &Path, done: io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; there is no other place to report to.
            let _ = writeln!(io::stderr(), "{}: {error}", path.display());
            ExitCode::from(FileError::of_error(&error).code())
        }
    }
}
