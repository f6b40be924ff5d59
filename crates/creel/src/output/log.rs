//! Log lines on stderr: the story at -v, the reasons at -vv, the wire at -vvv.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::environment::CREEL_LOG;

use super::{Global, progress};

/// Starts logging for the whole process.
pub(crate) fn start(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let ours = format!("error,creel={level},creel_core={level}");
    let filter = std::env::var(CREEL_LOG).ok().filter(|filter| !filter.is_empty());
    let filter = EnvFilter::new(filter.unwrap_or(ours));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .without_time()
        .with_ansi(anstream::stderr().current_choice() != anstream::ColorChoice::Never)
        .with_writer(|| AboveTheBar)
        .finish();
    // Logging that was started before, by a test, is as good.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Writes to stderr without tearing the progress bar.
struct AboveTheBar;

impl Write for AboveTheBar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        progress::above_the_bar(|| anstream::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        anstream::stderr().flush()
    }
}
