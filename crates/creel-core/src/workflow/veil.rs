//! Settings as they may be shown to whoever asks what a workflow would do.
//!
//! What a sandbox says goes through [`crate::sanitise`]; this is for the workflow's own words,
//! in which secrets stand exactly as they were given.

use std::cmp::Reverse;
use std::fmt;

use secrecy::ExposeSecret;

use super::Resolved;

/// Hides the secrets of a workflow in its own settings.
pub struct Veil<'a> {
    /// The longest first, so that none is uncovered by a part of it.
    secrets: Vec<&'a str>,
}

impl fmt::Debug for Veil<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Veil").finish_non_exhaustive()
    }
}

impl Resolved {
    /// Returns what hides its secrets.
    pub fn veil(&self) -> Veil<'_> {
        let secrets = self.secrets().into_iter();
        let mut secrets: Vec<&str> = secrets.map(|(_, secret)| secret.expose_secret()).collect();
        secrets.sort_by_key(|secret| Reverse(secret.len()));
        Veil { secrets }
    }
}

impl Veil<'_> {
    /// Returns a text with `***` in place of every secret.
    pub fn over(&self, text: &str) -> String {
        let mut veiled = String::new();
        let mut rest = text;
        // One way through, so that what is put in place of one secret is never taken for another.
        while let Some(next) = rest.chars().next() {
            match self.secrets.iter().find_map(|secret| rest.strip_prefix(secret)) {
                Some(after) => {
                    veiled.push_str("***");
                    rest = after;
                }
                None => {
                    veiled.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        veiled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_the_longest_first_and_each_in_its_place() {
        let veil = Veil { secrets: vec!["abcd", "abc", "*"] };
        assert_eq!(veil.over("xabcdx abc ä*"), "x***x *** ä***");
        assert_eq!(Veil { secrets: Vec::new() }.over("abc"), "abc");
    }
}
