//! The command line: `--name value` and `--name`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::failure::Failure;

/// What stood behind the command.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    values: BTreeMap<String, OsString>,
    switches: BTreeSet<String>,
}

impl Arguments {
    /// Reads the words, given the names that take a value and those that take none.
    pub(crate) fn read(
        words: Vec<OsString>,
        valued: &[&str],
        plain: &[&str],
    ) -> Result<Self, Failure> {
        let mut read = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let name = word.to_str().and_then(|word| word.strip_prefix("--"));
            match name {
                Some(name) if plain.contains(&name) => {
                    read.switches.insert(name.to_owned());
                }
                Some(name) if valued.contains(&name) => {
                    let value = words.next();
                    let value = value.ok_or_else(|| usage(format!("--{name} needs a value")))?;
                    read.values.insert(name.to_owned(), value);
                }
                _ => return Err(usage(format!("no such option: {}", word.display()))),
            }
        }
        Ok(read)
    }

    /// Returns whether a name without a value was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.switches.contains(name)
    }

    /// Returns the path under a name.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.values.get(name).map(PathBuf::from)
    }

    /// Returns the path under a name that must be there.
    pub(crate) fn needed_path(&self, name: &str) -> Result<PathBuf, Failure> {
        self.path(name).ok_or_else(|| usage(format!("--{name} is missing")))
    }

    /// Returns the text under a name that must be there.
    pub(crate) fn needed_text(&self, name: &str) -> Result<&str, Failure> {
        let value = self.values.get(name).ok_or_else(|| usage(format!("--{name} is missing")))?;
        value.to_str().ok_or_else(|| usage(format!("--{name} is no text: {}", value.display())))
    }

    /// Returns the number under a name that must be there.
    pub(crate) fn needed_number(&self, name: &str) -> Result<u64, Failure> {
        let value = self.values.get(name).ok_or_else(|| usage(format!("--{name} is missing")))?;
        let number = value.to_str().and_then(|text| text.parse().ok());
        number.ok_or_else(|| usage(format!("--{name} is no number: {}", value.display())))
    }

    /// Returns the milliseconds under a name that must be there.
    pub(crate) fn needed_duration(&self, name: &str) -> Result<Duration, Failure> {
        self.needed_number(name).map(Duration::from_millis)
    }
}

fn usage(reason: String) -> Failure {
    Failure::Usage(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Arguments, Failure> {
        let words = words.iter().map(OsString::from).collect();
        Arguments::read(words, &["from"], &["follow"])
    }

    #[test]
    fn names_with_and_without_a_value_are_told_apart() {
        let arguments = read(&["--from", "7", "--follow"]).unwrap();
        assert_eq!(arguments.needed_number("from").unwrap(), 7);
        assert!(arguments.has("follow") && !arguments.has("from"));
    }

    #[test]
    fn what_is_unknown_or_missing_is_named() {
        let refusal = |words: &[&str]| read(words).unwrap_err().to_string();
        assert_eq!(refusal(&["--form", "7"]), "no such option: --form");
        assert_eq!(refusal(&["7"]), "no such option: 7");
        assert_eq!(refusal(&["--from"]), "--from needs a value");
        let refused = read(&["--from", "x"]).unwrap().needed_number("from").unwrap_err();
        assert_eq!(refused.to_string(), "--from is no number: x");
    }
}
