//! `put` and `get`: files in and out, see [`creel_bridge::file`].

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;

use creel_bridge::file::{self, Verdict};

use super::arguments::Arguments;
use super::failure::Failure;

/// How much is written at once.
const PIECE: usize = 64 << 10;

/// Writes the standard input to a file.
pub(super) fn put(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = arguments.needed_path("path")?;
    let mode = arguments.needed_text("mode")?;
    let mode = u32::from_str_radix(mode, 8)
        .map_err(|_| Failure::Usage(format!("--mode is no octal number: {mode}")))?;
    let content = BufReader::with_capacity(PIECE, io::stdin());
    Ok(verdict_on(&path, file::put(&path, mode, content)))
}

/// Writes a file to the standard output.
pub(super) fn get(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = arguments.needed_path("path")?;
    let most = arguments.needed_number("most")?;
    Ok(verdict_on(&path, file::get(&path, most, io::stdout())))
}

fn verdict_on(path: &Path, done: io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever closed the standard error does not want to know.
            let _ = writeln!(io::stderr(), "{}: {error}", path.display());
            ExitCode::from(Verdict::of_error(&error).code())
        }
    }
}
