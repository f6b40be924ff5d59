//! How long the tests take, by program and by module.
//!
//! A test program starts its tests in the order of their names, as many at once as it has threads,
//! and another one whenever one ends. It prints a line for each end. The times of these lines
//! therefore also tell when each test began.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The number of single tests that are listed.
const SLOWEST: usize = 15;

/// The ends of the tests of one program, as they are printed.
#[derive(Debug)]
pub(crate) struct ProgramTimes {
    program: String,
    threads: usize,
    started_at: Instant,
    ended_at: Instant,
    ends: Vec<(String, Instant)>,
}

impl ProgramTimes {
    /// Starts the clock of a program that runs this many tests at once.
    pub(crate) fn start(program: &str, threads: usize) -> Self {
        let now = Instant::now();
        let program = program.to_owned();
        Self { program, threads, started_at: now, ended_at: now, ends: Vec::new() }
    }

    /// Adds a line of output if it reports the end of a test.
    pub(crate) fn add_line(&mut self, line: &str, printed_at: Instant) {
        self.ended_at = printed_at;
        // `test a::b ... ok`
        let Some((name, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        else {
            return;
        };
        if ["ok", "FAILED"].iter().any(|end| result.starts_with(end)) {
            let name = name.split(" - should panic").next().unwrap_or(name);
            self.ends.push((name.to_owned(), printed_at));
        }
    }

    /// Returns each test and how long it took.
    fn tests(&self) -> Vec<(&str, Duration)> {
        let mut by_name: Vec<&(String, Instant)> = self.ends.iter().collect();
        by_name.sort();
        let in_order = by_name.into_iter().enumerate();
        let took = in_order.map(|(number, (name, ended_at))| {
            let freed_at = number.checked_sub(self.threads).map(|place| self.ends[place].1);
            let began_at = freed_at.unwrap_or(self.started_at);
            (name.as_str(), ended_at.saturating_duration_since(began_at))
        });
        took.collect()
    }

    fn took(&self) -> Duration {
        self.ended_at.saturating_duration_since(self.started_at)
    }
}

/// The times of all programs.
#[derive(Debug, Default)]
pub(crate) struct SuiteTimes(Vec<ProgramTimes>);

impl SuiteTimes {
    pub(crate) fn add(&mut self, program: ProgramTimes) {
        self.0.push(program);
    }

    /// Returns how long all programs took together.
    pub(crate) fn total(&self) -> Duration {
        self.0.iter().map(ProgramTimes::took).sum()
    }

    /// Returns the tables of programs, modules and single tests.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::from("| program | tests | at once | took |\n|---|---:|---:|---:|\n");
        for one in self.0.iter().filter(|one| !one.ends.is_empty()) {
            let (count, took) = (one.ends.len(), show(one.took()));
            let _ = writeln!(text, "| {} | {count} | {} | {took} |", one.program, one.threads);
        }
        text.push_str("\n| module | tests | sum of their times |\n|---|---:|---:|\n");
        for (module, (count, took)) in self.modules() {
            let _ = writeln!(text, "| {module} | {count} | {} |", show(took));
        }
        text.push_str("\n| slowest tests | took |\n|---|---:|\n");
        for (test, took) in self.slowest() {
            let _ = writeln!(text, "| `{test}` | {} |", show(took));
        }
        text
    }

    /// Returns the top-level modules of all programs, the slowest first.
    fn modules(&self) -> Vec<(String, (usize, Duration))> {
        let mut modules: BTreeMap<String, (usize, Duration)> = BTreeMap::new();
        for program in &self.0 {
            for (test, took) in program.tests() {
                let module = test.split_once("::").map_or("", |(module, _)| module);
                let name = format!("{}: `{module}`", program.program);
                let (count, sum) = modules.entry(name).or_default();
                *count += 1;
                *sum += took;
            }
        }
        let mut modules: Vec<_> = modules.into_iter().collect();
        modules.sort_by_key(|(_, (_, took))| std::cmp::Reverse(*took));
        modules.retain(|(_, (_, took))| took.as_secs() > 0);
        modules
    }

    fn slowest(&self) -> Vec<(&str, Duration)> {
        let mut tests: Vec<_> = self.0.iter().flat_map(ProgramTimes::tests).collect();
        tests.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        tests.truncate(SLOWEST);
        tests
    }
}

fn show(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_begins_when_a_thread_is_free() {
        let mut times = ProgramTimes::start("a", 2);
        let at = |seconds| times.started_at + Duration::from_secs(seconds);
        let lines = [
            ("running 4 tests", at(0)),
            ("test m::b ... ok", at(1)),
            ("test n::c - should panic ... ok", at(3)),
            ("test m::a ... FAILED", at(5)),
            ("test n::d ... ok", at(9)),
            ("test result: FAILED. 3 passed; 1 failed", at(9)),
        ];
        for (line, printed_at) in lines {
            times.add_line(line, printed_at);
        }
        // `a` and `b` begin at once, `c` when `b` ends, and `d` when `c` ends.
        let seconds: Vec<_> = times
            .tests()
            .into_iter()
            .map(|(name, took)| (name.to_owned(), took.as_secs()))
            .collect();
        let expected = [("m::a", 5), ("m::b", 1), ("n::c", 2), ("n::d", 6)];
        assert_eq!(seconds, expected.map(|(name, took)| (name.to_owned(), took)));
        let mut suite = SuiteTimes::default();
        suite.add(times);
        assert_eq!(suite.total(), Duration::from_secs(9));
        assert!(suite.tables().contains("| a: `n` | 2 | 8.0 s |"), "{}", suite.tables());
    }
}
