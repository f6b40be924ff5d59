//! Counts the results that test programs report.

/// Tests that passed and failed, over all test programs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// Adds a line of output if it is a test program's summary.
    pub(crate) fn add_line(&mut self, line: &str) {
        // `test result: ok. 3 passed; 0 failed; 0 ignored; …`
        let Some((_, counts)) = line.split_once("test result: ") else { return };
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split(';') {
            match count.trim().split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Counts a failure that no test program reported, such as a failed build or a killed program.
    pub(crate) fn add_unreported_failure(&mut self) {
        self.failed += 1;
    }

    /// Returns whether tests ran and all of them passed.
    pub(crate) fn is_good(&self) -> bool {
        self.passed > 0 && self.failed == 0
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed_and_others_ignored() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "test a::result ... ok",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out",
        ] {
            tally.add_line(line);
        }
        assert_eq!(tally.to_string(), "7 passed, 2 failed");
        assert!(!tally.is_good());
    }

    #[test]
    fn no_test_at_all_is_not_good() {
        assert!(!Tally::default().is_good());
    }
}
