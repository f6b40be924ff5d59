//! The two forms in which words of the outside may be kept or shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Text without secrets: the only form in which event payloads and logs are stored or shown.
///
/// There are two ways to make one: [`super::Masker`], and words of our own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Masked(String);

impl Masked {
    /// Takes words that stand in our own source: they hold no secret.
    pub fn ours(text: &'static str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn of(text: String) -> Self {
        Self(text)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text without secrets and without a word of the task, of at most [`Diagnostic::LONGEST`]
/// characters: the only form of causes, checklist tails and comments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Diagnostic(String);

impl Diagnostic {
    /// How many characters it has at most.
    pub const LONGEST: usize = 300;

    /// Takes words that stand in our own source.
    pub fn ours(text: &'static str) -> Self {
        debug_assert!(text.chars().count() <= Self::LONGEST, "our own words are short");
        Self(text.to_owned())
    }

    pub(super) fn of(text: String) -> Self {
        debug_assert!(text.chars().count() <= Self::LONGEST, "the masker cuts");
        Self(text)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
