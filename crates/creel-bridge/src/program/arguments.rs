//! The command line: `--name value` and `--name`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::error::BridgeError;

/// The arguments after the command.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    values: BTreeMap<String, OsString>,
    switches: BTreeSet<String>,
}

impl Arguments {
    /// Parses the arguments, given the names that take a value and those that take none.
    pub(crate) fn read(
        args: Vec<OsString>,
        valued: &[&str],
        plain: &[&str],
    ) -> Result<Self, BridgeError> {
        let mut read = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let name = arg.to_str().and_then(|arg| arg.strip_prefix("--"));
            match name {
                Some(name) if plain.contains(&name) => {
                    read.switches.insert(name.to_owned());
                }
                Some(name) if valued.contains(&name) => {
                    let value = args.next();
                    let value = value.ok_or_else(|| usage(format!("--{name} needs a value")))?;
                    read.values.insert(name.to_owned(), value);
                }
                _ => return Err(usage(format!("no such option: {}", arg.display()))),
            }
        }
        Ok(read)
    }

    /// Returns whether a switch was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.switches.contains(name)
    }

    /// Returns the path of an option.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.values.get(name).map(PathBuf::from)
    }

    /// Returns the path of a required option.
    pub(crate) fn needed_path(&self, name: &str) -> Result<PathBuf, BridgeError> {
        self.path(name).ok_or_else(|| usage(format!("--{name} is missing")))
    }

    /// Returns the text of a required option.
    pub(crate) fn needed_text(&self, name: &str) -> Result<&str, BridgeError> {
        let value = self.values.get(name).ok_or_else(|| usage(format!("--{name} is missing")))?;
        value.to_str().ok_or_else(|| usage(format!("--{name} is no text: {}", value.display())))
    }

    /// Returns the number of a required option.
    pub(crate) fn needed_number(&self, name: &str) -> Result<u64, BridgeError> {
        let value = self.values.get(name).ok_or_else(|| usage(format!("--{name} is missing")))?;
        let number = value.to_str().and_then(|text| text.parse().ok());
        number.ok_or_else(|| usage(format!("--{name} is no number: {}", value.display())))
    }

    /// Returns the duration of a required option in milliseconds.
    pub(crate) fn needed_duration(&self, name: &str) -> Result<Duration, BridgeError> {
        self.needed_number(name).map(Duration::from_millis)
    }
}

fn usage(reason: String) -> BridgeError {
    BridgeError::Usage(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Arguments, BridgeError> {
        let args = args.iter().map(OsString::from).collect();
        Arguments::read(args, &["from"], &["follow"])
    }

    #[test]
    fn options_and_switches_are_parsed() {
        let arguments = read(&["--from", "7", "--follow"]).unwrap();
        assert_eq!(arguments.needed_number("from").unwrap(), 7);
        assert!(arguments.has("follow") && !arguments.has("from"));
    }

    #[test]
    fn errors_name_the_unknown_or_incomplete_option() {
        let refusal = |args: &[&str]| read(args).unwrap_err().to_string();
        assert_eq!(refusal(&["--form", "7"]), "no such option: --form");
        assert_eq!(refusal(&["7"]), "no such option: 7");
        assert_eq!(refusal(&["--from"]), "--from needs a value");
        let refused = read(&["--from", "x"]).unwrap().needed_number("from").unwrap_err();
        assert_eq!(refused.to_string(), "--from is no number: x");
    }
}
