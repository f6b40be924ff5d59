//! The format of a token, as the lists of rules describe it.

/// The format of a token.
pub(super) struct MaskRule {
    /// The name that replaces the token.
    pub(super) name: &'static str,
    /// The possible prefixes of the token.
    pub(super) anchors: &'static [&'static str],
    /// The whole token, from the anchor on; the first group, if there is one, is the secret.
    pub(super) expression: &'static str,
    /// Whether the anchor may occur in the middle of a word.
    pub(super) in_word: bool,
}
