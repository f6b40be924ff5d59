//! Masks secrets in the settings of a workflow, to show what the workflow would do.
//!
//! The output of a sandbox goes through [`creel_sanitise`]. This module is for
//! the workflow's own text, which contains secrets exactly as they were given.

use std::cmp::Reverse;
use std::fmt;

use secrecy::ExposeSecret;

use super::Resolved;

/// Masks the secrets of a workflow in its own settings.
pub struct SettingsMasker<'a> {
    /// The longest first, so that a secret is masked as a whole even if another one is a part of
    /// it.
    secrets: Vec<&'a str>,
}

impl fmt::Debug for SettingsMasker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsMasker").finish_non_exhaustive()
    }
}

impl Resolved {
    /// Returns a masker for its secrets.
    pub fn settings_masker(&self) -> SettingsMasker<'_> {
        let secrets = self.secrets().into_iter();
        let mut secrets: Vec<&str> = secrets.map(|(_, secret)| secret.expose_secret()).collect();
        secrets.sort_by_key(|secret| Reverse(secret.len()));
        SettingsMasker { secrets }
    }
}

impl SettingsMasker<'_> {
    /// Returns a text with `***` in place of every secret.
    pub fn mask(&self, text: &str) -> String {
        let mut masked = String::new();
        let mut rest = text;
        // In a single pass, so that a replacement is never taken for another secret.
        while let Some(next) = rest.chars().next() {
            match self.secrets.iter().find_map(|secret| rest.strip_prefix(secret)) {
                Some(after) => {
                    masked.push_str("***");
                    rest = after;
                }
                None => {
                    masked.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_the_longest_first_and_each_in_its_place() {
        let masker = SettingsMasker { secrets: vec!["abcd", "abc", "*"] };
        assert_eq!(masker.mask("xabcdx abc ä*"), "x***x *** ä***");
        assert_eq!(SettingsMasker { secrets: Vec::new() }.mask("abc"), "abc");
    }
}
