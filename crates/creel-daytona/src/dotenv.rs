//! Reads `.env` files, as far as the Daytona SDKs read them.
//!
//! The SDKs take `DAYTONA_*` from `.env.local` and `.env` in the working directory if the
//! environment has no such variable. The address of the API is never taken from there: the author
//! of the file could decide where the key is sent.

use std::collections::BTreeMap;
use std::path::Path;

/// The Daytona variables of `.env.local` and `.env` in one directory.
#[derive(Default)]
pub(super) struct DotEnv(BTreeMap<String, String>);

impl DotEnv {
    /// Reads the files of a directory; an unreadable file counts as empty.
    pub(super) fn of(directory: &Path) -> Self {
        let mut all = BTreeMap::new();
        for name in [".env", ".env.local"] {
            let text = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
            all.extend(text.lines().filter_map(assignment));
        }
        Self(all)
    }

    /// Returns a variable.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

/// Parses one line: `NAME=value`, optionally quoted, optionally after `export`.
fn assignment(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    if !name.starts_with("DAYTONA_") {
        return None;
    }
    let quoted = ['"', '\''].into_iter().find_map(|quote| {
        let inner = value.strip_prefix(quote)?;
        inner.split_once(quote).map(|(inner, _)| inner)
    });
    let bare = || value.split_once(" #").map_or(value, |(value, _)| value).trim_end();
    Some((name.to_owned(), quoted.unwrap_or_else(bare).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_daytonas_variables_are_read_however_they_are_written() {
        let read = |line| assignment(line).map(|(_, value)| value);
        assert_eq!(read("DAYTONA_API_KEY=dtn_1").as_deref(), Some("dtn_1"));
        assert_eq!(read(" export DAYTONA_TARGET = \"us # x\" # y").as_deref(), Some("us # x"));
        assert_eq!(read("DAYTONA_TARGET='eu'").as_deref(), Some("eu"));
        assert_eq!(read("DAYTONA_TARGET=eu # the nearest").as_deref(), Some("eu"));
        for line in ["", "# DAYTONA_TARGET=x", "AWS_SECRET=x", "DAYTONA_TARGET"] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
