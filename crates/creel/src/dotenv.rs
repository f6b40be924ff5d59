//! `.env` files, as far as the Daytona SDKs read them.
//!
//! The SDKs take `DAYTONA_*` from `.env.local` and `.env` in the working
//! directory where the environment has no such variable. The address of the
//! API is never taken from there: whoever wrote the file would decide where
//! the key is sent.

use std::collections::BTreeMap;
use std::path::Path;

/// What `.env.local` and `.env` of one directory say about Daytona.
#[derive(Default)]
pub(crate) struct DotEnv(BTreeMap<String, String>);

impl DotEnv {
    /// Reads the files of a directory; what cannot be read says nothing.
    pub(crate) fn of(directory: &Path) -> Self {
        let mut all = BTreeMap::new();
        for name in [".env", ".env.local"] {
            let text = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
            all.extend(text.lines().filter_map(assignment));
        }
        Self(all)
    }

    /// Returns a variable.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

/// Reads one line: `NAME=value`, quoted or not, with `export` before it or not.
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
