//! Removes what a reader does not see: escape sequences, control characters, and zero-width
//! characters.

use super::view::View;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
/// How many bytes are checked at once.
const CHUNK: usize = 64;

/// Returns whether a text contains something that a reader does not see.
pub(super) fn has_hidden(text: &[u8]) -> bool {
    let mut start = 0;
    text.chunks(CHUNK).any(|chunk| {
        // Without an early exit from the loop the compiler can vectorise it.
        let suspects = chunk.iter().fold(0_u8, |all, byte| {
            let is_plain = (*byte >= b' ' && *byte < 0x7f) || *byte == b'\n' || *byte == b'\t';
            all | u8::from(!is_plain)
        });
        let at = start;
        start += chunk.len();
        suspects != 0 && (at..at + chunk.len()).any(|at| skipped(&text[at..]) > 0)
    })
}

/// Returns a view without escape sequences, control characters and zero-width characters.
///
/// Tabs and line breaks stay. A carriage return without a line feed becomes a line break.
pub(super) fn view(text: &[u8]) -> View {
    let bytes = text;
    let mut view = View::default();
    let (mut kept_from, mut at) = (0, 0);
    while at < bytes.len() {
        let skipped = skipped(&bytes[at..]);
        if skipped == 0 {
            at += 1;
            continue;
        }
        view.push(&text[kept_from..at], kept_from);
        if bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n') {
            view.push(b"\n", at);
        }
        at += skipped;
        kept_from = at;
    }
    view.push(&text[kept_from..], kept_from);
    view
}

/// Returns how many bytes at the beginning are not visible text.
fn skipped(bytes: &[u8]) -> usize {
    match bytes {
        [ESCAPE, b'[', rest @ ..] => {
            let parameters = rest.iter().take_while(|byte| (0x20..0x40).contains(*byte)).count();
            let has_end = rest.get(parameters).is_some_and(|byte| (0x40..0x7f).contains(byte));
            2 + parameters + usize::from(has_end)
        }
        [ESCAPE, b']', rest @ ..] => 2 + title(rest),
        [ESCAPE, rest @ ..] => {
            let between = rest.iter().take_while(|byte| (0x20..0x30).contains(*byte)).count();
            let has_end = rest.get(between).is_some_and(|byte| (0x30..0x7f).contains(byte));
            1 + between + usize::from(has_end)
        }
        [b'\n' | b'\t', ..] => 0,
        [byte, ..] if byte.is_ascii_control() => 1,
        [lead, ..] if *lead >= 0x80 => without_width(bytes),
        _ => 0,
    }
}

/// Returns the length of the zero-width character at the beginning, or 0.
///
/// These are joiners, direction marks, soft hyphens, variation selectors, tags, and the C1
/// controls.
fn without_width(bytes: &[u8]) -> usize {
    match bytes {
        [0xc2, 0x80..=0x9f | 0xad, ..] | [0xcd, 0x8f, ..] | [0xd8, 0x9c, ..] => 2,
        [0xe2, 0x80, 0x8b..=0x8f | 0xa8..=0xae, ..]
        | [0xe2, 0x81, 0xa0..=0xaf, ..]
        | [0xe1, 0xa0, 0x8b..=0x8f, ..]
        | [0xef, 0xb8, 0x80..=0x8f, ..]
        | [0xef, 0xbb, 0xbf, ..]
        | [0xef, 0xbf, 0xb9..=0xbb, ..] => 3,
        [0xf3, 0xa0, 0x80..=0x87, _, ..] => 4,
        _ => 0,
    }
}

/// Returns the length of the body of a sequence that ends with a bell or its own escape.
fn title(bytes: &[u8]) -> usize {
    match bytes.iter().position(|byte| [BELL, ESCAPE, b'\n'].contains(byte)) {
        Some(at) if bytes[at] == BELL => at + 1,
        Some(at) if bytes[at..].starts_with(b"\x1b\\") => at + 2,
        Some(at) => at,
        None => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_titles_and_control_characters_go_and_words_stay() {
        let text = "\x1b[1;31merror\x1b[0m:\t\x1b]0;title\x07ä\x08\r\n10 %\r20 %\x1b[K\n\x1b(Bend";
        assert_eq!(view(text.as_bytes()).into_text(), "error:\tä\n10 %\n20 %\nend");
    }

    #[test]
    fn a_sequence_that_is_cut_off_is_no_text_either() {
        assert_eq!(view(b"end\x1b[3").into_text(), "end");
        assert_eq!(view(b"end\x1b").into_text(), "end");
    }

    #[test]
    fn characters_without_width_go_and_those_of_other_scripts_stay() {
        let text = "a\u{200b}b\u{feff}c\u{ad}d\u{2060}e\u{202e}f\u{e0041}g größer 日本 …";
        assert!(has_hidden(text.as_bytes()));
        let shown = view(text.as_bytes()).into_text();
        assert_eq!(shown, "abcdefg größer 日本 …");
        assert!(!has_hidden(shown.as_bytes()));
    }
}
