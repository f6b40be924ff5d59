//! Runs tests by name, a few at a time, and reports as the standard harness does.

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
        pub(crate) const ALL: &[crate::runner::Test] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name)),+];
    };
}
pub(crate) use tests;

/// How many tests run at once.
const WORKERS: usize = 4;

/// What the command line chooses.
#[derive(Debug, Default)]
struct Choice<'a> {
    words: Vec<&'a str>,
    skipped: Vec<&'a str>,
    list: bool,
}

impl<'a> Choice<'a> {
    fn of(arguments: &[&'a str]) -> Self {
        let mut choice = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--list" => choice.list = true,
                "--skip" => choice.skipped.extend(arguments.next()),
                flag if flag.starts_with('-') => {}
                word => choice.words.push(word),
            }
        }
        choice
    }

    fn wants(&self, name: &str) -> bool {
        (self.words.is_empty() || self.words.iter().any(|word| name.contains(word)))
            && !self.skipped.iter().any(|word| name.contains(word))
    }
}

/// Runs the tests that the arguments choose.
#[expect(clippy::print_stdout, reason = "this is the test harness: its report is its output")]
pub(crate) fn run(all: &[Test], arguments: &[&str]) -> ExitCode {
    let choice = Choice::of(arguments);
    let chosen: Vec<Test> = all.iter().copied().filter(|(name, _)| choice.wants(name)).collect();
    if choice.list {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
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
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let (passed, filtered) = (chosen.len() - failed.len(), all.len() - chosen.len());
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; \
         {filtered} filtered out",
        failed.len()
    );
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}
