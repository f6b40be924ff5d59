//! Runs tests by name, a few at a time.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A test: its name and what it does.
pub(crate) type Test = (&'static str, fn());

/// Makes the list of the tests in a module from their functions.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        pub(crate) const ALL: &[crate::runner::Test] = &[$((stringify!($name), $name)),+];
    };
}
pub(crate) use tests;

/// How many tests run at once.
const WORKERS: usize = 4;

/// Runs the tests whose names contain one of the words; all when there is none.
#[expect(clippy::print_stdout, reason = "this is the test harness: its report is its output")]
pub(crate) fn run(all: &[Test], words: &[&str]) -> ExitCode {
    let words: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let chosen: Vec<Test> = all.iter().copied().filter(|(name, _)| wanted(name)).collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((name, test)) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let started_at = Instant::now();
                    let passed = catch_unwind(test).is_ok();
                    let verdict = if passed { "ok" } else { "FAILED" };
                    println!("test {name} ... {verdict} ({} ms)", started_at.elapsed().as_millis());
                    if !passed {
                        failed.lock().expect("no test holds it").push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no test holds it");
    println!("\ntest result: {} of {} passed", chosen.len() - failed.len(), chosen.len());
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}
