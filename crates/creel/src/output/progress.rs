//! The progress bar: on stderr, and only on a terminal.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use creel_core::reap::{ItemReport, Outcome, Progress};
use indicatif::{ProgressBar, ProgressStyle};

use super::Printer;

/// The interval between two updates.
const TICK: Duration = Duration::from_millis(200);

static BAR: OnceLock<Mutex<Option<ProgressBar>>> = OnceLock::new();

fn current() -> Option<ProgressBar> {
    let bar = BAR.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    bar.clone()
}

fn set_current(bar: Option<ProgressBar>) {
    *BAR.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Runs a write to stderr while the bar, if there is one, is hidden.
pub(crate) fn above_the_bar<T>(write: impl FnOnce() -> T) -> T {
    match current() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Shows how many items of a plan are done, and an estimate for the rest.
pub(crate) struct SweepBar {
    bar: Option<ProgressBar>,
    not_gone: Mutex<usize>,
}

impl SweepBar {
    pub(crate) fn new(printer: &Printer) -> Self {
        let bar = printer.shows_progress().then(|| {
            let style = ProgressStyle::with_template(
                "releasing {bar:30} {pos}/{len} {msg} {elapsed} left {eta}",
            );
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        set_current(bar.clone());
        Self { bar, not_gone: Mutex::new(0) }
    }
}

impl Progress for SweepBar {
    fn planned(&self, count: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(count as u64);
            bar.enable_steady_tick(TICK);
        }
    }

    fn finished(&self, item: &ItemReport) {
        let Some(bar) = &self.bar else { return };
        bar.inc(1);
        if item.result != Outcome::Gone {
            let mut not_gone = self.not_gone.lock().unwrap_or_else(PoisonError::into_inner);
            *not_gone += 1;
            bar.set_message(format!("({not_gone} not gone)"));
        }
    }
}

impl Drop for SweepBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        set_current(None);
    }
}

/// Shows what is being waited for, and for how long, on a terminal.
pub(crate) struct WaitLine {
    is_watched: bool,
}

impl WaitLine {
    pub(crate) fn new(printer: &Printer) -> Self {
        Self { is_watched: printer.shows_progress() }
    }

    /// Shows this text in place of the previous one.
    pub(crate) fn show(&self, what: &str) {
        self.clear();
        if !self.is_watched {
            return;
        }
        let style = ProgressStyle::with_template("  {spinner} {msg} {elapsed}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let line = ProgressBar::new_spinner().with_style(style).with_message(what.to_owned());
        line.enable_steady_tick(TICK);
        set_current(Some(line));
    }

    /// Clears the line.
    pub(crate) fn clear(&self) {
        if let Some(line) = current().filter(|_| self.is_watched) {
            line.finish_and_clear();
            set_current(None);
        }
    }
}

impl Drop for WaitLine {
    fn drop(&mut self) {
        self.clear();
    }
}
