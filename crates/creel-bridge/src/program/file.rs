//! `put` and `get`: files in and out, see [`creel_bridge::file`].

use std::ffi::OsString;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use creel_bridge::file::{self, Verdict};

use super::arguments::Arguments;
use super::failure::Failure;

/// How much is written at once.
const PIECE: usize = 64 << 10;

/// Writes the standard input to a file.
pub(super) fn put(words: Vec<OsString>) -> Result<ExitCode, Failure> {
    let (arguments, path) = read(words, "mode")?;
    let mode = arguments.needed_text("mode")?;
    let mode = u32::from_str_radix(mode, 8)
        .map_err(|_| Failure::Usage(format!("--mode is no octal number: {mode}")))?;
    let content = BufReader::with_capacity(PIECE, io::stdin());
    Ok(verdict_on(&path, file::put(&path, mode, content)))
}

/// Writes a file to the standard output.
pub(super) fn get(words: Vec<OsString>) -> Result<ExitCode, Failure> {
    let (arguments, path) = read(words, "most")?;
    let most = arguments.needed_number("most")?;
    Ok(verdict_on(&path, file::get(&path, most, io::stdout())))
}

/// Reads an option, two dashes, and the path behind them, which may begin with anything.
fn read(mut words: Vec<OsString>, option: &str) -> Result<(Arguments, PathBuf), Failure> {
    let path = words.pop();
    match (words.pop(), path) {
        (Some(dashes), Some(path)) if dashes == "--" => {
            Ok((Arguments::read(words, &[option], &[])?, PathBuf::from(path)))
        }
        _ => Err(Failure::Usage("one path is needed, behind --".to_owned())),
    }
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
