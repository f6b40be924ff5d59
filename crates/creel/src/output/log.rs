//! Log lines on stderr: progress at -v, reasons at -vv, requests and responses at -vvv.

use std::io::{self, Write};

use creel_sanitise as sanitise;
use tracing_subscriber::EnvFilter;

use super::{Global, progress};

/// Starts logging for the whole process.
///
/// A filter in `tracing` syntax takes precedence over the flags.
pub(crate) fn start(global: &Global, filter: Option<String>) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let ours = format!("error,creel={level}");
    let filter = EnvFilter::new(filter.unwrap_or(ours));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .without_time()
        .with_ansi(anstream::stderr().current_choice() != anstream::ColorChoice::Never)
        .with_writer(|| AboveTheBar)
        .finish();
    // A test may have started logging before; that is fine.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Writes to stderr without breaking the progress bar.
struct AboveTheBar;

impl Write for AboveTheBar {
    /// Writes a whole line, as the subscriber passes it, with the known secrets of this process
    /// masked.
    ///
    /// Errors of providers and libraries are logged unchanged and may contain secrets.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = sanitise::process_masker().mask_bytes(bytes);
        // On an error the subscriber prints to stderr and panics if that fails too. On a full disk
        // or a closed pipe the command must continue without its log.
        let _ = progress::above_the_bar(|| anstream::stderr().write_all(line.as_str().as_bytes()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = anstream::stderr().flush();
        Ok(())
    }
}
