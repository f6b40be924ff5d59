//! The secrets of a run, and those among them that cannot be masked.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// Minimum length of a secret; a shorter text occurs everywhere by chance.
const FEWEST: usize = 4;
/// Minimum length of a numeric secret; a shorter number is a port, a year or a count.
const FEWEST_DIGITS: usize = 6;
/// Values that are too common in logs to be masked.
const COMMON_WORDS: [&str; 12] = [
    "admin",
    "default",
    "false",
    "guest",
    "localhost",
    "main",
    "none",
    "null",
    "root",
    "test",
    "true",
    "user",
];

/// What must not be shown: secrets by name, and the private text of the task.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Names and values, in insertion order.
    named: Vec<(String, SecretString)>,
    /// Texts of which a diagnostic must not contain a stretch.
    private: Vec<SecretString>,
}

impl Secrets {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a secret; its name replaces it in masked text.
    pub fn add(&mut self, name: &str, secret: &SecretString) {
        self.named.push((name.to_owned(), secret.clone()));
    }

    /// Adds the text of a task, an issue or an input.
    pub fn add_private_text(&mut self, text: &str) {
        self.private.push(SecretString::from(text));
    }

    /// Adds the named secrets of another set that are new; returns whether there are any.
    pub(super) fn learn(&mut self, others: &Self) -> bool {
        let before = self.named.len();
        for (name, secret) in &others.named {
            let value = secret.expose_secret();
            if self.named.iter().all(|(_, known)| known.expose_secret() != value) {
                self.named.push((name.clone(), secret.clone()));
            }
        }
        self.named.len() > before
    }

    /// Returns the secrets that can be masked, without surrounding white space.
    pub(super) fn maskable(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.named.iter().map(|(name, secret)| (name.as_str(), value(secret)));
        all.filter(|(_, value)| judge(value).is_none())
    }

    /// Returns the secrets that cannot be masked, each with the reason.
    pub(super) fn unmasked(&self) -> Vec<Unmasked> {
        let judged = self.named.iter().filter_map(|(name, secret)| {
            Some(Unmasked { name: name.clone(), why: judge(value(secret))? })
        });
        judged.collect()
    }

    pub(super) fn private_texts(&self) -> impl Iterator<Item = &str> {
        self.private.iter().map(|text| text.expose_secret())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Secrets").field("names", &names).finish_non_exhaustive()
    }
}

/// A secret that cannot be masked, because masking it would make text unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmasked {
    /// Its name.
    pub name: String,
    /// Why it is not masked.
    pub why: Unmaskable,
}

/// Why a secret cannot be masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmaskable {
    /// There is nothing to mask.
    Empty,
    /// It has fewer than four characters.
    TooShort,
    /// It is a common word or number, or one repeated character.
    Common,
}

impl fmt::Display for Unmaskable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::TooShort => "it has fewer than four characters",
            Self::Common => "it is too common a word or number to be a secret",
        })
    }
}

/// Returns the value to search for, without the line break that ends a secret from a file.
fn value(secret: &SecretString) -> &str {
    secret.expose_secret().trim()
}

fn judge(value: &str) -> Option<Unmaskable> {
    let count = value.chars().count();
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let first = value.chars().next();
    if first.is_none() {
        Some(Unmaskable::Empty)
    } else if count < FEWEST {
        Some(Unmaskable::TooShort)
    } else if COMMON_WORDS.contains(&value.to_lowercase().as_str())
        || (is_number && count < FEWEST_DIGITS)
        || value.chars().all(|other| Some(other) == first)
    {
        Some(Unmaskable::Common)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overly_common_values_are_not_masked_but_reported() {
        let mut secrets = Secrets::new();
        let values = ["", "abc", "true", "8080", "xxxxxxxxxx", "hunter2", " s3cret\n"];
        for (number, value) in values.into_iter().enumerate() {
            secrets.add(&format!("S{number}"), &SecretString::from(value));
        }
        let maskable: Vec<_> = secrets.maskable().collect();
        assert_eq!(maskable, [("S5", "hunter2"), ("S6", "s3cret")]);
        let why: Vec<_> = secrets.unmasked().into_iter().map(|one| one.why).collect();
        use Unmaskable::{Common, Empty, TooShort};
        assert_eq!(why, [Empty, TooShort, Common, Common, Common]);
    }

    #[test]
    fn printing_the_secrets_for_developers_shows_none() {
        let mut secrets = Secrets::new();
        secrets.add("GIT_TOKEN", &SecretString::from("hunter2hunter2"));
        secrets.add_private_text("find the treasure under the old oak");
        let shown = format!("{secrets:?}");
        assert!(shown.contains("GIT_TOKEN"));
        assert!(!shown.contains("hunter2") && !shown.contains("treasure"), "{shown}");
    }
}
