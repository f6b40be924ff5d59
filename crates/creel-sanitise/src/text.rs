//! The two forms in which external text may be stored or shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Text without secrets, the only form in which event payloads and logs are stored or shown.
///
/// Only a [`Masker`](crate::Masker) (also through `From`) and text from our own source produce a new one.
/// Stored text can be read back because only masked text is ever stored. A column or field of this
/// type cannot hold anything else; the compiler enforces it, because the field is private:
///
/// ```compile_fail
/// # use creel_sanitise::Masked;
/// let text = Masked(String::from("anything"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Masked(String);

impl Masked {
    /// Wraps text from our own source, which holds no secret.
    pub fn ours(text: &'static str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn of(text: String) -> Self {
        Self(text)
    }

    /// Wraps text read back from storage, where only masked text is ever written.
    pub fn stored(text: String) -> Self {
        Self(text)
    }

    /// Appends the text that follows, such as the next chunk of a stream.
    pub fn append(&mut self, next: &Self) {
        self.0.push_str(&next.0);
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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

/// Text without secrets and without text of the task, of at most [`Diagnostic::LONGEST`]
/// characters.
///
/// It is the only form of causes, checklist tails and comments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Diagnostic(String);

impl Diagnostic {
    /// The maximum length in characters.
    pub const LONGEST: usize = 300;

    /// Wraps text from our own source.
    pub fn ours(text: &'static str) -> Self {
        debug_assert!(text.chars().count() <= Self::LONGEST, "our own words are short");
        Self(text.to_owned())
    }

    /// Wraps text read back from storage, where only diagnostics are ever written.
    pub fn stored(text: String) -> Self {
        Self(text)
    }

    /// Appends a part that is safe by its type, and truncates the result if it is too long.
    ///
    /// ```
    /// # use creel_sanitise::Diagnostic;
    /// let text = Diagnostic::ours("it ended with ").and(7).and(" after ").and(3).and(" tries");
    /// assert_eq!(text.as_str(), "it ended with 7 after 3 tries");
    /// ```
    ///
    /// External text is not such a part:
    ///
    /// ```compile_fail
    /// # use creel_sanitise::Diagnostic;
    /// let heard = String::from("anything");
    /// let text = Diagnostic::ours("it said ").and(heard.as_str());
    /// ```
    #[must_use]
    pub fn and(self, part: impl Plain) -> Self {
        Self::beginning(&format!("{}{part}", self.0))
    }

    /// Keeps the beginning of a masked text.
    pub(super) fn beginning(text: &str) -> Self {
        match text.char_indices().nth(Self::LONGEST) {
            None => Self(text.to_owned()),
            Some(_) => {
                let kept: String = text.chars().take(Self::LONGEST - 1).collect();
                Self(kept + "…")
            }
        }
    }

    /// Keeps the end of a masked text.
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

    /// Returns whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value whose text is never external: numbers, text from our own source, and diagnostics.
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
