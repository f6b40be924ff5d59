//! The two forms in which words of the outside may be kept or shown.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::process_masker;

/// Text without secrets: the only form in which event payloads and logs are stored or shown.
///
/// There are two ways to make one: [`super::Masker`], also by `From`, and text of our own source.
/// Reading back what was stored is the third by name only, since nothing else was ever stored.
/// Columns and fields of this type are how the compiler refuses to store anything else.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

    /// Reads back what was stored: nothing else was ever stored.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    /// Adds what came behind it, such as the next piece of a stream.
    pub fn append(&mut self, next: &Self) {
        self.0.push_str(&next.0);
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

/// Masks a text by everything that this process knows to be secret.
///
/// There is no other way from a text to this type, so a field of it cannot hold what was not
/// masked:
///
/// ```compile_fail
/// # use creel_core::sanitise::Masked;
/// let text = Masked(String::from("anything"));
/// ```
impl From<&str> for Masked {
    fn from(text: &str) -> Self {
        process_masker().mask(text)
    }
}

impl From<String> for Masked {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl PartialEq<str> for Masked {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Masked {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
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

    /// Reads back what was stored: nothing else was ever stored.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    /// Adds a part that is safe by its type, and cuts what is too long.
    ///
    /// ```
    /// # use creel_core::sanitise::Diagnostic;
    /// let text = Diagnostic::ours("it ended with ").and(7).and(" after ").and(3).and(" tries");
    /// assert_eq!(text.as_str(), "it ended with 7 after 3 tries");
    /// ```
    ///
    /// Words of the outside are no such part:
    ///
    /// ```compile_fail
    /// # use creel_core::sanitise::Diagnostic;
    /// let heard = String::from("anything");
    /// let text = Diagnostic::ours("it said ").and(heard.as_str());
    /// ```
    #[must_use]
    pub fn and(self, part: impl Plain) -> Self {
        Self::beginning(&format!("{}{part}", self.0))
    }

    /// Keeps the beginning of a text that the masker has been through.
    pub(super) fn beginning(text: &str) -> Self {
        match text.char_indices().nth(Self::LONGEST) {
            None => Self(text.to_owned()),
            Some(_) => {
                let kept: String = text.chars().take(Self::LONGEST - 1).collect();
                Self(kept + "…")
            }
        }
    }

    /// Keeps the end of a text that the masker has been through.
    pub(super) fn end(text: &str) -> Self {
        match text.char_indices().nth_back(Self::LONGEST) {
            None => Self(text.to_owned()),
            Some(_) => {
                let last = text.char_indices().nth_back(Self::LONGEST - 2);
                Self(format!("…{}", &text[last.map_or(0, |(at, _)| at)..]))
            }
        }
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

/// A value that holds no word of the outside, whatever it is: numbers, words of our own source,
/// and diagnostics.
pub trait Plain: fmt::Display + sealed::Sealed {}

mod sealed {
    /// Keeps the list of plain types in this file.
    pub trait Sealed {}
}

macro_rules! plain {
    ($($plain:ty),+) => {
        $(impl sealed::Sealed for $plain {}
        impl Plain for $plain {})+
    };
}

plain!(bool, u8, u16, u32, u64, usize, i32, i64, f64, &'static str, Diagnostic, &Diagnostic);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_keeps_its_beginning_or_its_end_and_says_so() {
        let long: String = "äb".repeat(400);
        for kept in [Diagnostic::beginning(&long), Diagnostic::end(&long)] {
            assert_eq!(kept.as_str().chars().count(), Diagnostic::LONGEST);
            assert!(kept.as_str().contains('…'));
        }
        let fits = "ä".repeat(Diagnostic::LONGEST);
        assert_eq!(Diagnostic::beginning(&fits).as_str(), fits);
        assert_eq!(Diagnostic::end(&fits).as_str(), fits);
    }

    #[test]
    fn parts_that_are_safe_by_type_make_a_sentence_of_limited_length() {
        let mut text = Diagnostic::ours("tried ").and(3_u32).and(" times");
        assert_eq!(text.as_str(), "tried 3 times");
        for _ in 0..100 {
            text = text.and(", again");
        }
        assert_eq!(text.as_str().chars().count(), Diagnostic::LONGEST);
    }
}
