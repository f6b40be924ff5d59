//! Names: which characters they may contain, and how foreign names are shown.
//!
//! A line break in a name forges a table row, a control character moves the cursor, and a direction
//! mark reverses a line. Our own names must contain none of these. Names that others gave to their
//! containers, volumes and sandboxes are shown with escapes in their place.

use std::borrow::Cow;

/// Maximum number of characters in one of our names.
pub const LONGEST: usize = 128;

/// Why a text is not a valid name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It is empty or only whitespace.
    #[error("it is empty")]
    Empty,
    /// It has more than [`LONGEST`] characters.
    #[error("it has more than {LONGEST} characters")]
    TooLong,
    /// It has a line break, a control character, or a character that changes the text direction or
    /// has no width.
    #[error("it has a line break, or characters that cannot be seen")]
    Invisible,
}

/// Checks one of our own names.
///
/// # Errors
///
/// Fails when the name is empty, too long, or has invisible characters.
pub fn check(name: &str) -> Result<(), InvalidName> {
    if name.trim().is_empty() {
        return Err(InvalidName::Empty);
    }
    if name.contains(is_invisible) {
        return Err(InvalidName::Invisible);
    }
    match name.chars().nth(LONGEST) {
        Some(_) => Err(InvalidName::TooLong),
        None => Ok(()),
    }
}

/// Returns whether a character is invisible, or changes how other characters are shown.
pub fn is_invisible(one: char) -> bool {
    one.is_control()
        || matches!(one,
            '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns a foreign name for display on one terminal line, with invisible characters escaped.
///
/// ```
/// # use creel_model::names::visible;
/// assert_eq!(visible("a\nb\u{202e}c"), "a\\nb\\u{202e}c");
/// assert_eq!(visible("größe 日本"), "größe 日本");
/// ```
pub fn visible(name: &str) -> Cow<'_, str> {
    if !name.contains(is_invisible) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::with_capacity(name.len() + 8);
    for one in name.chars() {
        match one {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            one if is_invisible(one) => shown.extend(one.escape_unicode()),
            one => shown.push(one),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_that_can_be_seen() {
        for name in ["app", "größe 日本", "a b", &"x".repeat(LONGEST)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        assert_eq!(check("  "), Err(InvalidName::Empty));
        assert_eq!(check(&"x".repeat(LONGEST + 1)), Err(InvalidName::TooLong));
        for name in ["a\nb", "a\tb", "\x1b[2J", "a\u{202e}b", "a\u{200b}b", "a\u{85}b"] {
            assert_eq!(check(name), Err(InvalidName::Invisible), "{name:?}");
        }
    }
}
