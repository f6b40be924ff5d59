//! Regular expressions that match whole texts.

use std::str::FromStr;

use regex::Regex;
use serde::{Deserialize, Deserializer};

/// A regular expression that must match a whole text.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Returns whether the whole text matches.
    pub fn fits(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl Pattern {
    /// Fills a template with the groups of a matching text: `$1` is the first group.
    pub fn expand(&self, text: &str, template: &str) -> Option<String> {
        let mut filled = String::new();
        self.0.captures(text)?.expand(template, &mut filled);
        Some(filled)
    }

    /// Returns the number of groups.
    pub(super) fn groups(&self) -> usize {
        self.0.captures_len() - 1
    }
}

impl FromStr for Pattern {
    type Err = regex::Error;

    fn from_str(text: &str) -> Result<Self, regex::Error> {
        // Compiled alone first: an expression must not close the group that anchors it.
        Regex::new(text)?;
        Regex::new(&format!(r"\A(?:{text})\z")).map(Self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_text() {
        let pattern: Pattern = "a|bc".parse().unwrap();
        assert!(pattern.fits("a") && pattern.fits("bc"));
        for other in ["", "ab", "abc", "xa", "a\n", "bc "] {
            assert!(!pattern.fits(other), "{other:?}");
        }
    }

    #[test]
    fn a_template_expands_the_groups_of_a_text() {
        let pattern: Pattern = "(.+)-[0-9]+".parse().unwrap();
        assert_eq!(pattern.expand("a-b-3", "x__${1}__y"), Some("x__a-b__y".to_owned()));
        assert_eq!(pattern.expand("a-b", "x"), None);
        assert_eq!(pattern.groups(), 1);
    }

    #[test]
    fn a_pattern_cannot_slip_out_of_its_anchors() {
        assert!("a)|(b".parse::<Pattern>().is_err());
    }
}
